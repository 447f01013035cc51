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
    mean_curve,
)
from experiments.networks import build
from experiments.page import label_quick, markdown
from experiments.store import ResultFile
from lehr.errors import InvalidValue
from lehr.training.prepare import build_method
from tests.experiments.made_up_jobs import shapes_of, tiny

KEPT = Path(__file__).parents[2] / "experiments/results/papers"
EVERY = [pytest.param(each, id=f"{paper} {each.name}") for paper in PAPERS for each in experiments(paper)]


def test_equal_settings_are_one_job() -> None:
    assert key_of(tiny(expected_batch_size=32.0, network=("small_cnn", {}))) == key_of(tiny())
    assert key_of(tiny(settings={"learning_rate": 1.0})) == key_of(tiny(settings={"learning_rate": 1}))
    assert tiny(views=1, records=None) == tiny()  # defaults are no part of a key, so that new options change none
    timing, other = (Measurement(function="adadp:time", is_timing=is_timing) for is_timing in (True, False))
    assert key_of(timing) == key_of(other)


@pytest.mark.parametrize(
    "changed", [{"seed": 1}, {"settings": {"learning_rate": 0.1}}, {"scored_on": "half"}, {"views": 2}, {"records": 9}]
)
def test_other_settings_are_another_job(changed: dict[str, object]) -> None:
    assert key_of(tiny(**changed)) != key_of(tiny())


def test_a_job_survives_a_file_and_another_process() -> None:
    job = tiny(settings={"schedule": {"kind": "constant"}}, expected_batch_size=32.5)
    assert key_of(json.loads(json.dumps(job.to_json()))) == key_of(job)
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize("function", ["os.path:join", "adadp", "adadp:a.b", ":f"])
def test_a_measurement_is_a_function_of_this_package(function: str) -> None:
    with pytest.raises(InvalidValue, match="function"):
        Measurement(function=function).run(device="cpu", data_dir=None)


@pytest.mark.parametrize("paper", PAPERS)
def test_names_of_experiments_are_unique(paper: str) -> None:
    names = [each.name for each in experiments(paper)]
    assert len(set(names)) == len(names) > 0
    assert {each.paper for each in experiments(paper)} == {paper}
    assert find_experiment(paper, names[0]).name == names[0]


@pytest.mark.parametrize("each", EVERY)
def test_an_experiment_is_shown_before_it_is_run(each: Experiment) -> None:
    shown = each.report(Outcomes({}), Size())
    assert shown.tables or shown.charts
    for table in shown.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert markdown(table)
        ours = [index for index, column in enumerate(table.columns) if column.title.startswith("ours")]
        if each.jobs(Size()):
            cells = [row[index] for row in table.rows for index in ours]
            assert all(cell is None or isinstance(cell, str) or cell == Statistic(()) for cell in cells)


@pytest.mark.parametrize("each", EVERY)
def test_a_quick_version_has_other_jobs_and_is_labelled(each: Experiment) -> None:
    whole, quick = each.jobs(Size()), each.jobs(Size(is_quick=True))
    assert bool(whole) == bool(quick)
    trained = {key_of(job) for job in whole if isinstance(job, Training)}  # arithmetic is the same in both
    assert not trained & {key_of(job) for job in quick}
    shown = label_quick(each.report(Outcomes({}), Size(is_quick=True)))
    assert all("quick" in table.title.lower() for table in shown.tables)


@pytest.mark.parametrize("each", EVERY)
def test_methods_and_networks_of_training_runs_can_be_built(each: Experiment) -> None:
    networks = {}
    for job in each.jobs(Size()):
        if isinstance(job, Training):
            method, shape = build_method(job.config), job.to_json()
            assert method.name == shape["method"]
            assert method.is_private is bool({"noise_multiplier", "epsilon"} & {*shape})
            networks[str(shape["network"])] = shape["network"]
    for name, arguments in networks.values():
        with torch.device("meta"):
            build(name, **arguments)


def test_jobs_are_those_that_a_report_looks_up_by_seed() -> None:
    @experiment("adadp", "table9", "Two settings")
    def made_up(outcomes: Outcomes, size: Size) -> Report:
        """Batches of 16
        and of 32.
        """
        for batch in (16, 32, 16):
            outcomes.statistic(tiny(expected_batch_size=batch, seed=seed) for seed in size.seed_range(2))
        return Report()

    shapes = shapes_of(made_up.jobs(Size()))
    assert [(each["seed"], each["expected_batch_size"]) for each in shapes] == [(0, 16), (0, 32), (1, 16), (1, 32)]
    assert made_up.about == "Batches of 16 and of 32."


def test_a_mean_curve_has_the_steps_at_which_all_runs_were_evaluated() -> None:
    rows = [[[1, 1, 0.25, 1.0], [2, 2, 0.25, 1.0]], [[2, 2, 0.75, 1.0], [3, 3, 0.5, 1.0]]]
    assert mean_curve([{"trajectory": each} for each in rows]) == {2: 0.5}
    assert mean_curve([]) == {}


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_kept_runs_are_jobs_of_their_experiment(path: Path) -> None:
    kept = ResultFile.read(path)
    jobs = {key_of(job) for job in find_experiment(kept.paper, kept.name).jobs(Size())}
    assert kept.entries
    assert kept.entries.keys() <= jobs
    assert (kept.entries.keys() == jobs) or not kept.name.startswith("acceptance")


def test_an_unknown_paper_or_table_is_refused() -> None:
    with pytest.raises(InvalidValue, match="paper"):
        experiments("opacus")
    with pytest.raises(InvalidValue, match="name"):
        find_experiment("sa-dpsgd", "table9")
