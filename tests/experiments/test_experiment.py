from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch

from experiments.experiment import (
    PAPERS,
    Experiment,
    Measurement,
    Outcomes,
    Report,
    Size,
    Statistic,
    Training,
    experiment,
    experiments,
    find_experiment,
    key_of,
    key_of_words,
    mean_curve,
)
from experiments.networks import build
from experiments.page import labelled, markdown
from experiments.store import ResultFile
from lehr.errors import InvalidValue
from lehr.training.prepare import build_method
from tests.experiments.made_up_jobs import tiny, words_of

KEPT = Path(__file__).parents[2] / "experiments/results/papers"


def test_jobs_of_the_same_words_are_one_job() -> None:
    assert key_of(tiny()) == key_of(tiny())
    assert key_of(tiny(expected_batch_size=32.0, network=("small_cnn", {}))) == key_of(tiny())
    assert key_of(tiny(settings={"learning_rate": 1.0})) == key_of(tiny(settings={"learning_rate": 1}))


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"settings": {"learning_rate": 0.1}}, {"scored_on": "half"}, {"views": 2}, {"records": 9}]
)
def test_whatever_decides_a_job_is_among_its_words(changed: dict[str, object]) -> None:
    assert key_of(tiny(**changed)) != key_of(tiny())


def test_a_field_at_its_default_is_not_said_so_that_new_fields_change_no_key() -> None:
    assert "views" not in tiny().to_json()
    assert tiny(views=1, records=None) == tiny()


def test_words_have_the_same_key_after_they_were_in_a_file() -> None:
    job = tiny(settings={"schedule": {"kind": "constant"}}, expected_batch_size=32.5)
    assert key_of_words(json.loads(json.dumps(job.to_json()))) == key_of(job)
    assert pickle.loads(pickle.dumps(job)) == job  # as another process receives it


def test_when_a_measurement_is_run_does_not_decide_what_it_is() -> None:
    one, other = (Measurement(function="adadp:time", takes_times=alone) for alone in (True, False))
    assert key_of(one) == key_of(other)


@pytest.mark.parametrize("function", ["os.path:join", "adadp", "adadp:a.b", ":f"])
def test_a_measurement_is_a_function_of_this_package_alone(function: str) -> None:
    with pytest.raises(InvalidValue, match="function"):
        Measurement(function=function).called(device="cpu", data_dir=None)


EVERY = [pytest.param(each, id=f"{paper} {each.name}") for paper in PAPERS for each in experiments(paper)]


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_tables_of_its_own_names(paper: str) -> None:
    names = [each.name for each in experiments(paper)]
    assert names
    assert len(set(names)) == len(names)
    assert {each.paper for each in experiments(paper)} == {paper}
    assert find_experiment(paper, names[0]).name == names[0]


@pytest.mark.parametrize("each", EVERY)
def test_every_experiment_can_be_shown_before_any_of_it_was_run(each: Experiment) -> None:
    shown = labelled(each.report(Outcomes({}), Size()), is_quick=False)
    assert shown.tables or shown.charts
    for table in shown.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert markdown(table)
        ours = [place for place, column in enumerate(table.columns) if column.title.startswith("ours")]
        if each.jobs(Size()):
            cells = [row[place] for row in table.rows for place in ours]
            assert all(cell is None or isinstance(cell, str) or cell == Statistic(()) for cell in cells)


@pytest.mark.parametrize("each", EVERY)
def test_every_experiment_has_a_quick_version_whose_jobs_are_others_and_which_says_so(each: Experiment) -> None:
    whole, quick = each.jobs(Size()), each.jobs(Size(is_quick=True))
    assert bool(whole) == bool(quick)
    # Arithmetic is the same in both.
    trained = {key_of(job) for job in whole if job.to_json()["kind"] == "training"}
    assert not trained & {key_of(job) for job in quick}
    shown = labelled(each.report(Outcomes({}), Size(is_quick=True)), is_quick=True)
    assert all("quick" in table.title.lower() for table in shown.tables)


def test_jobs_are_those_that_a_report_looks_up_and_every_first_seed_comes_before_a_second() -> None:
    @experiment("adadp", "table9", "Two settings")
    def made_up(outcomes: Outcomes, size: Size) -> Report:
        """Batches of 16
        and of 32.
        """
        for batch in (16, 32, 16):
            outcomes.statistic(tiny(expected_batch_size=batch, seed=seed) for seed in size.seed_range(2))
        return Report()

    words = words_of(made_up.jobs(Size()))
    assert [(each["seed"], each["expected_batch_size"]) for each in words] == [(0, 16), (0, 32), (1, 16), (1, 32)]
    assert made_up.about == "Batches of 16 and of 32."


def test_a_mean_curve_has_the_steps_that_all_runs_were_looked_at() -> None:
    rows = [[[1, 1, 0.25, 1.0], [2, 2, 0.25, 1.0]], [[2, 2, 0.75, 1.0], [3, 3, 0.5, 1.0]]]
    assert mean_curve([{"trajectory": each} for each in rows]) == {2: 0.5}
    assert mean_curve([]) == {}


@pytest.mark.parametrize("each", EVERY)
def test_every_method_and_network_of_a_training_run_can_be_built(each: Experiment) -> None:
    networks = {}
    for job in each.jobs(Size()):
        if isinstance(job, Training):
            method, words = build_method(job.config), job.to_json()
            assert method.name == words["method"]
            assert method.is_private is ("noise_multiplier" in words)
            networks[str(words["network"])] = words["network"]
    for name, arguments in networks.values():
        with torch.device("meta"):
            build(name, **arguments)


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_kept_runs_are_jobs_of_their_experiment(path: Path) -> None:
    kept = ResultFile.read(path)
    jobs = {key_of(job) for job in find_experiment(kept.paper, kept.name).jobs(Size())}
    assert kept.entries
    assert kept.entries.keys() <= jobs
    assert (kept.entries.keys() == jobs) or not kept.name.startswith("acceptance")


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(InvalidValue, match="adadp, methods, sa-dpsgd, tan, tempered-sigmoids"):
        experiments("opacus")
    with pytest.raises(InvalidValue, match="table1"):
        find_experiment("sa-dpsgd", "table9")
