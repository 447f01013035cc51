from __future__ import annotations

import math
from typing import Any

import pytest

from experiments import adadp, adadp_accuracy
from experiments.adadp_accuracy import PROVEN, PUBLISHED, on_mnist
from experiments.experiment import Experiment, Job, Measurement, Outcomes, Size, Statistic, Table, key_of
from experiments.networks import build
from lehr.data import catalogue
from lehr.training.prepare import build_method
from tests.experiments.made_up_jobs import words_of

SETTING = on_mnist(noise=3.0, components=6.0, delta=1e-4)
VARIANTS = (
    *adadp_accuracy.variants_on_mnist(10),
    *adadp_accuracy.variants_on_cifar(10),
    *adadp_accuracy.MNIST.variants,
)


def found_job(experiment: Experiment, **wanted: Any) -> Job:
    """The only job with such words; None: without that word."""
    [job] = [
        job
        for job in experiment.jobs(Size())
        if all(job.to_json().get(name) == value for name, value in wanted.items())
    ]
    return job


def outcomes(*found: tuple[Job, dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): outcome for job, outcome in found})


def run_with(*rows: tuple[int, float]) -> dict[str, Any]:
    """An outcome whose accuracies are these, after so many steps."""
    return {"trajectory": [[steps, steps, value, 1.0] for steps, value in rows], "accuracy": rows[-1][1]}


def row_of(table: Table, name: str) -> tuple[Any, ...]:
    [row] = [row for row in table.rows if row[0] == name]
    return row


@pytest.mark.parametrize("experiment", adadp.EXPERIMENTS, ids=lambda each: each.name)
def test_times_are_taken_by_jobs_that_run_alone(experiment: Experiment) -> None:
    jobs = experiment.jobs(Size())
    assert any(isinstance(job, Measurement) and job.takes_times for job in jobs) == (experiment.name == "table2")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_is_proven_where_its_clipping_is(variant: adadp_accuracy.Variant) -> None:
    assert variant.is_proven == (build_method(SETTING.job(variant, 0).config).clipping.unproven is None)


def test_numbers_of_records_are_those_of_the_known_data_sets() -> None:
    records = {name: catalogue.CATALOGUE[name].records for name in adadp_accuracy.RECORDS}
    assert records == adadp_accuracy.RECORDS


def test_bounds_of_layers_on_cifar_10_are_the_papers_and_have_one_norm_together() -> None:
    network = build("alexnet_like", frozen_convolutions=True)
    trained = {name.rpartition(".")[0] for name, value in network.named_parameters() if value.requires_grad}
    assert set(adadp_accuracy.CIFAR_BOUNDS) == trained
    assert sorted(adadp_accuracy.CIFAR_BOUNDS.values()) == [3, 3, 6]
    assert math.sqrt(54) == pytest.approx(adadp_accuracy.CIFAR_CLIP_NORM)


def test_epsilon_has_the_private_components_in_it() -> None:
    given: dict[str, Any] = {"sampling_probability": 0.01, "components": None, "accountant": PUBLISHED}
    without = adadp_accuracy.epsilon_of(1000, noise=3.0, delta=1e-4, **given)
    assert without < SETTING.epsilon(1000, accountant=PUBLISHED) == pytest.approx(0.877, abs=1e-3)
    assert SETTING.epsilon(0, accountant=PROVEN) > 0
    # The paper's example of its theorem.
    assert adadp_accuracy.epsilon_of(1800, noise=0.9, delta=1e-5, **given) == pytest.approx(4.015, abs=1e-3)


def test_epsilon_of_figure_2_is_the_one_that_was_measured_with_its_runs() -> None:
    setting = on_mnist(noise=4.0, components=7.0, delta=1e-5)
    assert setting.epsilon(1000, accountant=PUBLISHED) == pytest.approx(0.8016716, abs=1e-6)
    assert setting.epsilon(1000, accountant=PROVEN) == pytest.approx(0.5846929, abs=1e-4)


@pytest.mark.parametrize("epsilon", [0.75, 1.40, 1.96])
def test_most_steps_are_within_and_one_more_is_not(epsilon: float) -> None:
    steps = SETTING.most_steps(epsilon)
    assert SETTING.epsilon(steps, accountant=PUBLISHED) <= epsilon
    assert SETTING.epsilon(steps + 1, accountant=PUBLISHED) > epsilon
    assert SETTING.most_steps(0.1) == 0  # the components alone cost more


def test_a_proven_epsilon_in_words_is_rounded_up_and_a_papers_to_the_nearest() -> None:
    assert adadp_accuracy.in_words(1.4041, accountant=PROVEN) == "1.41"
    assert adadp_accuracy.in_words(1.4041, accountant=PUBLISHED) == "1.4"


def test_steps_pass_every_epsilon_that_the_paper_prints_for_adadp_and_three_for_dpsgd() -> None:
    assert 1.40 < SETTING.epsilon(adadp_accuracy.STEPS_OF_ADADP, accountant=PUBLISHED) < 1.41
    assert SETTING.epsilon(adadp_accuracy.STEPS_OF_DPSGD, accountant=PUBLISHED) > 1.96
    assert SETTING.epsilon(100_000, accountant=PUBLISHED) < 5.48  # the last one is out of reach


def test_epsilon_is_that_of_the_first_step_at_which_every_run_has_the_accuracy() -> None:
    table, experiment = adadp_accuracy.MNIST, adadp_accuracy.table1
    first, second = table.runs(table.variants[0], (0, 1))
    found = outcomes(
        (first, run_with((100, 0.91), (200, 0.93), (300, 0.90))), (second, run_with((100, 0.89), (300, 0.92)))
    )
    published, proven, _ = experiment.report(found, Size()).tables
    for shown, accountant in ((published, PUBLISHED), (proven, PROVEN)):
        expected = tuple(SETTING.epsilon(steps, accountant=accountant) for steps in (200, 300))
        assert row_of(shown, table.variants[0].name)[1] == Statistic(expected)
    assert not any("published" in str(row[0]) for row in proven.rows)


def test_rates_were_tried_with_a_seed_that_no_table_uses_and_for_dpsgd_as_often() -> None:
    words = words_of(adadp_accuracy.rates.jobs(Size()))
    assert {each["seed"] for each in words} == {adadp_accuracy.SEED_OF_SEARCHES}
    assert {each["seed"] for each in words_of(adadp_accuracy.table1.jobs(Size()))} == {0, 1, 2}
    methods = [each["method"] for each in words]
    assert methods.count("dpsgd") >= methods.count("adadp")


def test_a_gain_is_over_pairs_of_one_seed() -> None:
    figure2, at = adadp_accuracy.figure2, {"noise_multiplier": 2, "evaluate_every": None}
    proven = [found_job(figure2, method="adadp", settings=None, seed=seed, **at) for seed in (0, 1)]
    found = outcomes(
        (proven[0], run_with((1000, 0.95))),
        (proven[1], run_with((1000, 0.99))),
        (found_job(figure2, method="dpsgd", seed=0, **at), run_with((1000, 0.90))),
    )
    _, gains = figure2.report(found, Size()).tables
    [gain] = row_of(gains, "ADADP, proven, above DPSGD")[3].values
    assert gain == pytest.approx(0.05)
    assert row_of(gains, "in the paper, above DPSGD")[1:] == (0.059, 0.027, 0.010)


def test_a_line_goes_over_passes_and_its_end_stands_in_where_no_other_run_is_there() -> None:
    line = found_job(adadp_accuracy.figure2, method="dpsgd", noise_multiplier=8, evaluate_every=50)
    shown = adadp_accuracy.figure2.report(outcomes((line, run_with((500, 0.8), (1000, 0.9)))), Size())
    [chart] = shown.charts
    [drawn] = chart.lines
    assert (drawn.name, list(drawn.x), list(drawn.y)) == ("DPSGD", [5.0, 10.0], [0.8, 0.9])
    assert row_of(shown.tables[0], "DPSGD")[1] == Statistic((0.9,))


def test_figure_3_and_4b_share_the_runs_of_adadp() -> None:
    third, fourth = (
        {key_of(job) for job in each.jobs(Size())} for each in (adadp_accuracy.figure3, adadp_accuracy.figure4b)
    )
    assert len(third & fourth) == 2 * 3


@pytest.fixture(scope="module")
def learnt() -> dict[str, Any]:
    [job] = [job for job in adadp.figure4.jobs(Size(is_quick=True)) if isinstance(job, Measurement)]
    shorter = Measurement(function=job.function, arguments={**job.arguments, "at": [1, 10]})
    return shorter.called(device="cpu", data_dir=None)


def test_the_first_step_has_the_flat_clip_and_later_ones_bounds_by_coordinates(learnt: dict[str, Any]) -> None:
    assert not learnt["at"]["1"]["is_local"]
    later = learnt["at"]["10"]
    assert later["is_local"]
    assert 0 < later["correlation"] <= 1
    for kind in ("gradients", "roots", "noise"):
        assert later[kind] == sorted(later[kind])
    parameters = 20 * 100 + 100 + 100 * 10 + 10
    assert later["noise"][-1] == pytest.approx(1.2 * 8.0 * parameters**0.5 * later["roots"][-1])


@pytest.mark.parametrize("is_quick", [False, True], ids=["whole", "quick"])
def test_every_point_takes_the_most_steps_that_epsilon_allows(is_quick: bool) -> None:
    for point in adadp.points(is_quick):
        spent = [point.setting.epsilon(steps, accountant=PUBLISHED) for steps in (point.steps, point.steps + 1)]
        assert spent[0] <= 0.5 < spent[1]


def test_the_usual_values_are_run_once_and_shown_in_every_sweep() -> None:
    usual = found_job(adadp.figure5, noise_multiplier=8, expected_batch_size=600, settings=None)
    assert usual.to_json()["steps"] == 4237
    shown = adadp.figure5.report(outcomes((usual, {"accuracy": 0.9})), Size())
    rows = [row for row in shown.tables[0].rows if row[4] == Statistic((0.9,))]
    assert [row[0] for row in rows] == ["rate", "σ*", "lot size"]
    assert [chart.x_title for chart in shown.charts] == ["rate", "σ*", "lot size"]


def test_ratios_are_to_dpsgd_in_the_same_round() -> None:
    job = adadp.table2.jobs(Size())[0]
    milliseconds = {name: [1.0, 1.0] for name in adadp.TIMED}
    milliseconds |= {"DPSGD": [2.0, 4.0], "ADADP, proven": [6.0, 8.0]}
    mnist, cifar = adadp.table2.report(outcomes((job, {"milliseconds": milliseconds})), Size()).tables
    assert row_of(mnist, "ADADP, proven")[1:] == (0.5, 0.5 / 0.3, Statistic((6.0, 8.0)), Statistic((3.0, 2.0)))
    assert all(row[3:] == (None, None) for row in cifar.rows)


def test_steps_are_timed_after_a_warm_up_and_no_more_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("ADADP, proven", "AGD, loss of all records")
    monkeypatch.setattr(adadp, "TIMED", {name: adadp.TIMED[name] for name in kept})
    monkeypatch.setattr(adadp, "PLANNED", adadp.WARM_UP + 2)
    arguments = {"network": "mnist", "records": 150, "steps": 2, "rounds": 1}
    found = Measurement(function="adadp:times_of_steps", arguments=arguments).called(device="cpu", data_dir=None)
    assert set(found["milliseconds"]) == set(kept)
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in found["milliseconds"].values())
