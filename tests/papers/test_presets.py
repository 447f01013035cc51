from __future__ import annotations

import pytest

from lehr.errors import InvalidValue
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import key_of
from lehr.papers.presets import PAPERS, experiment, experiments
from lehr.papers.table import Measured
from lehr.papers.words import labelled, markdown

EVERY = [pytest.param(each, id=f"{paper} {each.name}") for paper in PAPERS for each in experiments(paper)]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_tables_of_its_own_names(paper: str) -> None:
    names = [each.name for each in experiments(paper)]
    assert names
    assert len(set(names)) == len(names)
    assert {each.paper for each in experiments(paper)} == {paper}
    assert experiment(paper, names[0]).name == names[0]


@pytest.mark.parametrize("each", EVERY)
def test_every_experiment_can_be_shown_before_any_of_it_was_run(each: Experiment) -> None:
    shown = labelled(each.shown(Outcomes({}), Size()), is_quick=False)
    assert shown.tables or shown.charts
    for table in shown.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert markdown(table)
        ours = [place for place, column in enumerate(table.columns) if column.title.startswith("ours")]
        if each.jobs(Size()):
            cells = [row[place] for row in table.rows for place in ours]
            assert all(cell is None or isinstance(cell, str) or cell == Measured(()) for cell in cells)


@pytest.mark.parametrize("each", EVERY)
def test_every_experiment_has_a_quick_version_whose_jobs_are_others_and_which_says_so(each: Experiment) -> None:
    whole, quick = each.jobs(Size()), each.jobs(Size(is_quick=True))
    assert bool(whole) == bool(quick)
    # Arithmetic is the same in both.
    trained = {key_of(job) for job in whole if job.to_json()["kind"] == "training"}
    assert not trained & {key_of(job) for job in quick}
    shown = labelled(each.shown(Outcomes({}), Size(is_quick=True)), is_quick=True)
    assert all("quick" in table.title.lower() for table in shown.tables)


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(InvalidValue, match="adadp, methods, sa-dpsgd, tan, tempered-sigmoids"):
        experiments("opacus")
    with pytest.raises(InvalidValue, match="table1"):
        experiment("sa-dpsgd", "table9")
