from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import stats

from lehr.errors import InvalidValue
from lehr.planning.scaling_law import Interval, Law, an_accuracy, fit_law

BATCHES = (64.0, 128.0, 256.0, 512.0)
DRAWS = 3000


def _bent(batch: float) -> float:
    return 0.7 - 0.004 * math.log2(batch / 64) ** 2


def _straight(batch: float) -> float:
    return 0.7 - 0.01 * math.log2(batch / 64)


def test_a_straight_line_is_found_again() -> None:
    law = fit_law([(batch, _straight(batch)) for batch in BATCHES])
    assert law.slope == pytest.approx(-0.01)
    assert law.at(4096) == pytest.approx(0.64)
    assert law.residual_std == pytest.approx(0, abs=1e-9)


def test_it_is_the_line_that_another_library_finds() -> None:
    accuracies = [0.71, 0.70, 0.66, 0.67]
    law, other = fit_law([*zip(BATCHES, accuracies, strict=True)]), stats.linregress(np.log2(BATCHES), accuracies)
    assert law.slope == pytest.approx(other.slope)
    assert law.at(1.0) == pytest.approx(other.intercept)
    reach = other.stderr * stats.t.ppf(0.975, 2)
    assert law.slope_interval(confidence=0.95) == pytest.approx((other.slope - reach, other.slope + reach))


def _shares_inside(interval_of: Callable[[Law], Interval], *, num_runs: int) -> float:
    """How often the mean of so many runs at 4096 falls into what was said before, of many made-up experiments."""
    draws = np.random.default_rng(7)
    inside = 0
    for _ in range(DRAWS):
        seen = [(batch, _straight(batch) + draws.normal(0, 0.01)) for batch in BATCHES for _ in range(2)]
        inside += interval_of(fit_law(seen)).has(_straight(4096) + draws.normal(0, 0.01 / math.sqrt(num_runs)))
    return inside / DRAWS


@pytest.mark.parametrize("num_runs", [1, 3])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_interval_holds_as_often_as_it_says(confidence: float, num_runs: int) -> None:
    share = _shares_inside(lambda law: law.interval(4096, confidence=confidence, num_runs=num_runs), num_runs=num_runs)
    assert abs(share - confidence) < 4 * math.sqrt(confidence * (1 - confidence) / DRAWS)


def test_an_interval_that_forgets_that_the_line_is_uncertain_would_be_found_out() -> None:
    def too_narrow(law: Law) -> Interval:
        return Interval(law.at(4096) - 1.96 * law.residual_std, law.at(4096) + 1.96 * law.residual_std)

    assert _shares_inside(too_narrow, num_runs=1) < 0.8


def test_the_interval_of_many_runs_is_that_of_the_line_itself() -> None:
    law = fit_law([(64, 0.7), (128, 0.68), (256, 0.69), (512, 0.66)])
    one, many = (law.interval(4096, confidence=0.95, num_runs=number) for number in (1, 10**9))
    assert one.lowest < many.lowest < law.at(4096) < many.highest < one.highest


def test_farther_away_less_is_known() -> None:
    law = fit_law([(64, 0.7), (128, 0.68), (256, 0.69), (512, 0.66)])
    widths = [high - low for low, high in (law.interval(batch, confidence=0.95) for batch in (512, 1024, 4096))]
    assert widths == sorted(widths)
    assert law.doublings_beyond(4096) == 3
    assert law.doublings_beyond(100) == 0


def _repeated(line: Callable[[float], float], *, apart: float) -> Law:
    return fit_law([(batch, line(batch) + sign * apart) for batch in BATCHES for sign in (-1, 0, 1)])


def test_a_bend_is_told_from_chance_by_runs_of_one_batch() -> None:
    bent, chance, straight = (
        _repeated(_bent, apart=0.001),
        _repeated(_bent, apart=0.05),
        _repeated(_straight, apart=0.01),
    )
    assert bent.bend_p_value is not None
    assert bent.bend_p_value < 0.001
    assert chance.bend_p_value is not None
    assert chance.bend_p_value > 0.5
    assert straight.bend_p_value == pytest.approx(1.0)


def test_runs_around_a_straight_line_seem_bent_as_often_as_the_p_value_says() -> None:
    chance = np.random.default_rng(0)
    runs = [
        [(batch, _straight(batch) + chance.normal(0, 0.01)) for batch in BATCHES for _ in range(3)] for _ in range(800)
    ]
    p_values = np.array([fit_law(each).bend_p_value for each in runs], dtype=float)
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.025)
    assert np.mean(p_values < 0.5) == pytest.approx(0.5, abs=0.06)


def test_accuracies_that_level_off_are_told_before_they_mislead() -> None:
    """As measured on CIFAR-10 over 600 steps: the line from these to 4096 is four points too high."""
    levelling_off = {64: 0.579, 128: 0.606, 256: 0.622, 512: 0.623}
    law = fit_law([(batch, mean + away) for batch, mean in levelling_off.items() for away in (-0.008, 0, 0.008)])
    assert law.bend_p_value is not None
    assert law.bend_p_value < 0.05


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


@pytest.mark.parametrize("runs", [[], [(64, 0.7), (128, 0.7)], [(64, 0.7), (64, 0.6), (64, 0.5)]])
def test_too_few_runs_or_batches_are_refused(runs: Sequence[tuple[float, float]]) -> None:
    with pytest.raises(InvalidValue, match="runs must be 3 or more, of 2 or more batches"):
        fit_law(runs)


@pytest.mark.parametrize("run", [(64, math.nan), (64, 1.2), (0, 0.5), (math.inf, 0.5), (-1, 0.5)])
def test_what_is_no_batch_or_no_accuracy_is_refused(run: tuple[float, float]) -> None:
    with pytest.raises(InvalidValue):
        fit_law([(128, 0.5), (256, 0.5), run])


@pytest.mark.parametrize("confidence", [0.0, 1.0, 0.999_999_9, math.nan])
def test_a_confidence_is_below_one(confidence: float) -> None:
    law = fit_law([(64, 0.7), (128, 0.68), (256, 0.69)])
    with pytest.raises(InvalidValue, match="confidence"):
        law.interval(4096, confidence=confidence)


def test_an_accuracy_is_a_share() -> None:
    assert an_accuracy(accuracy=1) == 1.0
    with pytest.raises(InvalidValue, match="accuracy"):
        an_accuracy(accuracy=63.1)
