"""ε after every step."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from lehr.accounting.accountant import bound
from lehr.accounting.running import EpsilonCurve
from lehr.errors import InvalidValue, UnsupportedEvent
from lehr.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)

STEPS: dict[str, Event] = {
    "sampled": PoissonSampled(512 / 60_000, Gaussian(1.23)),
    "unsampled": Gaussian(30.0),
    "a gradient and a noisy validation loss": Composed(
        (PoissonSampled(0.01, Gaussian(1.2)), PoissonSampled(0.005, Gaussian(1.3)))
    ),
    "free at first": PoissonSampled(1e-5, Gaussian(3.0)),
}
DELTA = 1e-5


@pytest.mark.parametrize("name", STEPS)
def test_it_is_never_below_the_bound_and_within_half_a_percent(name: str) -> None:
    curve = EpsilonCurve(STEPS[name], delta=DELTA, largest_steps=1200)
    for steps in (1, 2, 3, 17, 150, 151, 400, 877, 1199):
        exact = bound(Repeated(STEPS[name], steps), delta=DELTA).epsilon
        assert exact * (1 - 1e-4) <= curve.at(steps) <= exact * 1.005 + 1e-12, steps


def test_asked_for_in_turn_it_is_never_below_the_bound_and_within_half_a_percent() -> None:
    step = STEPS["sampled"]
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=800)
    values = [curve.at(steps) for steps in range(801)]
    assert all(earlier <= later for earlier, later in pairwise(values))
    for steps in (5, 99, 350, 351, 352, 640, 799):
        exact = bound(Repeated(step, steps), delta=DELTA).epsilon
        assert exact * (1 - 1e-4) <= values[steps] <= exact * 1.005


def test_a_chart_of_few_points_has_no_flat_spots() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=1000)
    values = [curve.drawn_at(steps) for steps in range(900, 1001)]
    assert all(earlier < later for earlier, later in pairwise(values))
    with pytest.raises(InvalidValue, match=r"^steps must be at most 1000"):
        curve.drawn_at(1001)


def test_at_both_ends_it_is_exact() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=500)
    assert curve.at(0) == 0
    assert curve.at(500) == bound(Repeated(STEPS["sampled"], 500), delta=DELTA).epsilon


def test_a_million_steps_are_within_reach() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=10**6)
    values = [curve.at(steps) for steps in range(0, 10**6 + 1, 50_000)]
    assert all(earlier < later for earlier, later in pairwise(values))
    assert math.isfinite(values[-1])


def test_steps_that_only_the_renyi_accountant_counts_have_a_curve() -> None:
    step = SampledWithoutReplacement(1000, 10, Gaussian(3.0))
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=50, adjacency=Adjacency.REPLACE_ONE)
    exact = bound(Repeated(step, 20), delta=DELTA, adjacency=Adjacency.REPLACE_ONE).epsilon
    assert curve.at(20) == pytest.approx(exact, rel=1e-9)


def test_steps_without_noise_are_infinite_from_the_first() -> None:
    curve = EpsilonCurve(Gaussian(0.0), delta=DELTA, largest_steps=10)
    assert [curve.at(steps) for steps in (0, 1, 10)] == [0, math.inf, math.inf]


@pytest.mark.parametrize("steps", [-1, 101, 2.5, "7"])
def test_steps_outside_of_the_plan_are_refused_by_name(steps: object) -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=100)
    with pytest.raises(InvalidValue, match=r"^steps must be"):
        curve.at(steps)  # type: ignore[arg-type]


def test_a_step_that_nobody_can_count_is_refused_at_once() -> None:
    with pytest.raises(UnsupportedEvent):
        EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=100, adjacency=Adjacency.REPLACE_ONE)


def test_selection_has_a_curve() -> None:
    curve = EpsilonCurve(RepeatAndSelect(Gaussian(20.0), mean=3.0), delta=DELTA, largest_steps=4)
    assert 0 < curve.at(1) < curve.at(4)


def test_steps_with_a_pure_mechanism_have_a_curve() -> None:
    step = Composed((STEPS["sampled"], PureDP(0.01)))
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=64)
    exact = [bound(Repeated(step, steps), delta=DELTA).epsilon for steps in (1, 20, 64)]
    found = [curve.at(steps) for steps in (1, 20, 64)]
    assert all(e * (1 - 1e-5) <= f <= e * 1.005 for e, f in zip(exact, found, strict=True))
