from __future__ import annotations

import pytest

from lehr.papers import adadp
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Measurement, key_of

every = pytest.mark.parametrize("experiment", adadp.EXPERIMENTS, ids=lambda each: each.name)


def test_all_tables_and_figures_of_the_paper_are_there_once() -> None:
    names = [each.name for each in adadp.EXPERIMENTS]
    assert {"table1", "table2", "figure1", "figure2", "figure3", "figure4", "figure5"} <= set(names)
    assert len(set(names)) == len(names)
    assert {each.paper for each in adadp.EXPERIMENTS} == {"adadp"}


@every
def test_no_job_stands_twice_and_a_quick_look_has_fewer_and_others(experiment: Experiment) -> None:
    whole, quick = ([key_of(job) for job in experiment.jobs(Size(is_quick=is_quick))] for is_quick in (False, True))
    assert len(set(whole)) == len(whole)
    assert 0 < len(quick) <= len(whole)
    assert not set(whole) & set(quick)


@every
@pytest.mark.parametrize("is_quick", [False, True], ids=["whole", "quick"])
def test_without_outcomes_there_are_tables_and_no_chart(experiment: Experiment, is_quick: bool) -> None:
    shown = experiment.shown(Outcomes({}), Size(is_quick=is_quick))
    assert shown.tables
    assert not shown.charts
    for table in shown.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)


@every
def test_times_are_taken_by_jobs_that_run_alone(experiment: Experiment) -> None:
    jobs = experiment.jobs(Size())
    assert any(isinstance(job, Measurement) and job.takes_times for job in jobs) == (experiment.name == "table2")
