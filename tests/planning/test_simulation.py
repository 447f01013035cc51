"""Simulated plans, the law of their accuracies, and the prediction from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lehr.accounting.events import Adjacency, Gaussian, RenyiLimit
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.planning.simulation import (
    Law,
    Prediction,
    SimulatedRun,
    fit_law,
    prediction_from_json,
    setting_of,
    simulate,
)

REFERENCE = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)


@pytest.mark.parametrize("batch", [64, 100.5, 512, 4095])
def test_noise_per_record_of_the_batch_and_steps_stay_as_they_are(batch: float) -> None:
    cheap = simulate(REFERENCE, expected_batch_size=batch)
    per_step = REFERENCE.sampling_probability / REFERENCE.noise_multiplier
    assert cheap.sampling_probability / cheap.noise_multiplier == pytest.approx(per_step, rel=1e-12)
    assert (cheap.steps, cheap.records, cheap.delta) == (REFERENCE.steps, REFERENCE.records, REFERENCE.delta)
    assert cheap.simulates == REFERENCE
    assert Plan.from_json(cheap.to_json()) == cheap


@pytest.mark.parametrize("batch", [4096, 5000, 0, -1, float("nan"), "512"])
def test_a_batch_that_is_not_smaller_is_refused(batch: float) -> None:
    with pytest.raises(InvalidValue, match="expected_batch_size"):
        simulate(REFERENCE, expected_batch_size=batch)


@pytest.mark.parametrize(
    "plan",
    [
        simulate(REFERENCE, expected_batch_size=512),
        replace(REFERENCE, noise_multiplier=0.0),
        replace(REFERENCE, asked=Gaussian(5.0)),
        replace(REFERENCE, stops_at_accepted=10),
        replace(REFERENCE, limit=RenyiLimit(2.0, 1.0)),
        replace(REFERENCE, adjacency=Adjacency.REPLACE_ONE),
    ],
)
def test_what_the_law_is_not_about_is_refused(plan: Plan) -> None:
    with pytest.raises(InvalidValue):
        simulate(plan, expected_batch_size=64)


def test_its_own_epsilon_is_counted_and_not_that_of_the_plan_it_stands_for() -> None:
    assert REFERENCE.bound().epsilon < 7
    assert simulate(REFERENCE, expected_batch_size=512).bound().epsilon > 50


CHEAP = simulate(REFERENCE, expected_batch_size=128)


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 2.0},
        {"steps": 10},
        {"records": 60_000},
        {"delta": 1e-6},
        {"asked": Gaussian(2.0)},
        {"expected_batch_size": 64, "noise_multiplier": CHEAP.noise_multiplier / 2, "simulates": CHEAP},
    ],
)
def test_no_plan_can_say_that_it_simulates_another_one_than_it_does(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="simulates"):
        replace(CHEAP, **change)


# The law.

BATCHES = (64.0, 128.0, 256.0, 512.0)
DRAWS = 3000


def _in_log2(batch: float) -> float:
    return 0.6 + 0.02 * math.log2(batch / 64)


def _by_law(batch: float) -> float:
    return 0.7 - 4 / batch


def test_the_law_is_the_regression_of_another_library() -> None:
    accuracies, inverses = [0.60, 0.65, 0.69, 0.68], [1 / batch for batch in BATCHES]
    law, other = fit_law([*zip(BATCHES, accuracies, strict=True)]), stats.linregress(inverses, accuracies)
    assert law.coefficient == pytest.approx(other.slope)
    assert law.limit == pytest.approx(other.intercept)
    assert law.at(100) == pytest.approx(other.intercept + other.slope / 100)
    # The intercept's interval is that of the mean of very many runs of a very large batch.
    interval = law.interval(1e12, confidence=0.95, num_runs=10**12)
    assert interval.highest - law.limit == pytest.approx(other.intercept_stderr * stats.t.ppf(0.975, 2), rel=1e-4)


@pytest.fixture(scope="module")
def experiments() -> list[tuple[Law, dict[int, float]]]:
    """Laws of made-up runs, and the means of one and of three further runs at 4096."""
    draws = np.random.default_rng(7)
    found = []
    for _ in range(DRAWS):
        seen = [(batch, _by_law(batch) + draws.normal(0, 0.01)) for batch in BATCHES for _ in range(2)]
        means = {count: _by_law(4096) + draws.normal(0, 0.01 / math.sqrt(count)) for count in (1, 3)}
        found.append((fit_law(seen), means))
    return found


@pytest.mark.parametrize("num_runs", [1, 3])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_holds_as_often_as_it_says(
    experiments: list[tuple[Law, dict[int, float]]], confidence: float, num_runs: int
) -> None:
    inside = [law.interval(4096, confidence=confidence, num_runs=num_runs).has(m[num_runs]) for law, m in experiments]
    assert abs(sum(inside) / DRAWS - confidence) < 4 * math.sqrt(confidence * (1 - confidence) / DRAWS)


def test_an_interval_without_the_error_of_the_fitted_law_is_found_out(
    experiments: list[tuple[Law, dict[int, float]]],
) -> None:
    inside = [abs(means[1] - law.at(4096)) <= 1.96 * law.residual_std for law, means in experiments]
    assert sum(inside) / DRAWS < 0.9


def _repeated(accuracy: Callable[[float], float], *, apart: float) -> Law:
    return fit_law([(batch, accuracy(batch) + sign * apart) for batch in BATCHES for sign in (-1, 0, 1)])


def test_runs_that_do_not_follow_the_law_are_told_from_chance_by_runs_of_one_batch() -> None:
    cases = ((_in_log2, 0.001), (_in_log2, 0.05), (_by_law, 0.01))
    other, chance, same = (_repeated(accuracy, apart=apart).bend_p_value for accuracy, apart in cases)
    assert other is not None
    assert other < 0.001
    assert chance is not None
    assert chance > 0.5
    assert same == pytest.approx(1.0)


def test_runs_around_the_law_seem_bent_as_often_as_the_p_value_says() -> None:
    chance = np.random.default_rng(0)
    runs = [
        [(batch, _by_law(batch) + chance.normal(0, 0.01)) for batch in BATCHES for _ in range(3)] for _ in range(800)
    ]
    p_values = np.array([fit_law(each).bend_p_value for each in runs], dtype=float)
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.025)
    assert np.mean(p_values < 0.5) == pytest.approx(0.5, abs=0.06)


def test_accuracies_that_level_off_are_predicted() -> None:
    """As measured on CIFAR-10 over 600 steps: 63.4 % at 4096. A line in log2 of the batch predicts 67.4 %."""
    levelling_off = {64: 0.579, 128: 0.606, 256: 0.622, 512: 0.623}
    law = fit_law([(batch, mean + away) for batch, mean in levelling_off.items() for away in (-0.008, 0, 0.008)])
    assert law.bend_p_value is not None
    assert law.bend_p_value > 0.05
    assert law.interval(4096, confidence=0.95, num_runs=3).has(0.634)


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([(64, 0.7), (128, 0.69), (256, 0.67)], id="one run of each batch"),
        pytest.param([(64, 0.7), (64, 0.69), (128, 0.67), (128, 0.7)], id="two batches"),
        pytest.param([(64, 0.7), (64, 0.7), (128, 0.5), (256, 0.6)], id="no spread"),
    ],
)
def test_a_bend_cannot_be_told(runs: Sequence[tuple[float, float]]) -> None:
    assert fit_law(runs).bend_p_value is None


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [(64, 0.7), (128, 0.7)],
        [(64, 0.7), (64, 0.6), (64, 0.5)],
        *([(128, 0.5), (256, 0.5), run] for run in ((64, math.nan), (64, 1.2), (0, 0.5), (math.inf, 0.5), (-1, 0.5))),
    ],
)
def test_too_few_runs_and_what_is_no_batch_or_accuracy_are_refused(runs: Sequence[tuple[float, float]]) -> None:
    with pytest.raises(InvalidValue):
        fit_law(runs)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 0.999_999_9, math.nan])
def test_a_confidence_is_below_one(confidence: float) -> None:
    law = fit_law([(64, 0.7), (128, 0.68), (256, 0.69)])
    with pytest.raises(InvalidValue, match="confidence"):
        law.interval(4096, confidence=confidence)


# The prediction.

CONFIG: dict[str, Any] = {
    "method": {"name": "dpsgd", "settings": {"learning_rate": 4.0}},
    "data": {"name": "digits", "declared": "public"},
    "model": {"network": "small_cnn", "trained": {"0.weight": [3, 3]}},
    "training": {"views": 1, "evaluate_every": 10},
}


def runs(*accuracies: float, batches: tuple[float, ...] = (64, 128, 256, 512)) -> tuple[SimulatedRun, ...]:
    pairs = zip(batches, accuracies, strict=True)
    return tuple(SimulatedRun(expected_batch_size=batch, accuracy=accuracy) for batch, accuracy in pairs)


PREDICTION = Prediction(reference=REFERENCE, runs=runs(0.60, 0.64, 0.67, 0.675), setting=setting_of(CONFIG))


def test_outcomes_are_inside_or_outside_and_several_have_a_narrower_interval() -> None:
    inside, below = PREDICTION.compared_with([0.685]), PREDICTION.compared_with([0.5])
    assert inside.is_inside
    assert inside.difference == pytest.approx(0.685 - PREDICTION.accuracy)
    assert not below.is_inside
    assert below.difference < -0.1
    several = PREDICTION.compared_with([0.675, 0.685, 0.695])
    assert several.outcome == pytest.approx(0.685)
    assert several.num_runs == 3
    assert inside.interval.lowest < several.interval.lowest < several.interval.highest < inside.interval.highest
    for outcomes in ([], [math.nan], [62.0]):
        with pytest.raises(InvalidValue, match="outcome"):
            PREDICTION.compared_with(outcomes)


def test_a_prediction_is_clipped_to_shares_of_records() -> None:
    rising = Prediction(reference=REFERENCE, runs=runs(0.80, 0.91, 0.95, 0.99))
    assert rising.accuracy == 1.0
    assert rising.interval().highest == 1.0
    assert 0.8 < rising.interval().lowest < 1
    assert rising.compared_with([1.0]).is_inside
    assert rising.is_beyond_all_or_nothing
    assert not PREDICTION.is_beyond_all_or_nothing


def test_a_file_gives_the_same_prediction_again() -> None:
    shape: Any = strict_json.loads(strict_json.dumps(PREDICTION.to_json()))
    assert shape["follows"]["accuracy"] == PREDICTION.accuracy
    assert prediction_from_json(shape) == PREDICTION


def _changed(path: str, value: object) -> dict[str, Any]:
    shape: Any = strict_json.loads(strict_json.dumps(PREDICTION.to_json()))
    *above, last = path.split("/")
    place = shape
    for name in above:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return dict(shape)


@pytest.mark.parametrize(
    "path, value",
    [
        ("runs/0/accuracy", 70),
        ("runs/0/note", "surplus"),
        ("runs/0/expected_batch_size", 4096),  # a run of the reference itself
        ("runs", {}),
        ("reference/steps", 0),
        ("confidence", 1),
        ("evaluated_on", ""),
        ("predicted_on", "yesterday"),
        ("format_version", 1),
        ("format", "lehr audit"),
        ("setting", {"method": {}}),
        ("setting", []),
        ("setting/model", "small_cnn"),
        ("surplus", 1),
    ],
)
def test_another_json_form_is_refused(path: str, value: object) -> None:
    with pytest.raises(InvalidValue):
        prediction_from_json(_changed(path, value))


def test_settings_of_another_run_that_differ_are_named() -> None:
    other = {**CONFIG, "method": {"name": "dpsgd", "settings": {"learning_rate": 2.0, "momentum": 0.9}}}
    rate, momentum = PREDICTION.other_settings(other)
    assert all(words in rate for words in ("learning rate", "4.0", "2.0"))
    assert all(words in momentum for words in ("momentum", "0.9"))
    assert PREDICTION.other_settings({**CONFIG, "data": {"name": "digits", "declared": "private"}}) == ()


def test_records_that_simulations_may_have_revealed_are_noticed() -> None:
    def config(**data: str) -> dict[str, Any]:
        return {**CONFIG, "data": data}

    assert PREDICTION.may_reveal(config(name="digits", declared="private"))
    assert PREDICTION.may_reveal(config(name="digits"))
    assert not PREDICTION.may_reveal(config(name="digits", declared="public"))
    assert not PREDICTION.may_reveal(config(name="patients", declared="private"))
    assert not replace(PREDICTION, setting={}).may_reveal(config(name="digits"))


def test_a_run_of_other_steps_is_refused_and_one_of_other_records_is_not() -> None:
    PREDICTION.refuse_other_plan(REFERENCE)
    PREDICTION.refuse_other_plan(replace(REFERENCE, records=60_000, delta=1e-6))
    for plan in (None, replace(REFERENCE, steps=10), simulate(REFERENCE, expected_batch_size=64)):
        with pytest.raises(InvalidValue, match="prediction"):
            PREDICTION.refuse_other_plan(plan)
