"""The search behind calibration."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting.accountant import bound
from lehr.accounting.calibration import (
    OUT_OF_SIGHT,
    Setting,
    Target,
    calibrate,
    largest_sample,
    largest_steps,
    last_within,
    smallest_noise_multiplier,
)
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    PureDP,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.errors import InvalidValue, Unreachable
from tests.accounting.settings import DPSGD, Reference, in_the_whole_box
from tests.sizes import sizes


@given(limit=st.integers(1, 10**6), power=st.floats(0.2, 2.0))
def test_a_whole_value_is_found_to_the_unit(limit: int, power: float) -> None:
    found = last_within(
        lambda value: power * math.log(value / (limit + 0.5)), safe_end=1, other_end=10**6, start=1000, whole=True
    )
    assert found == limit


@given(limit=st.floats(1e-9, 0.99), power=st.floats(0.2, 2.0))
def test_a_real_value_is_found_within_a_thousandth_and_from_inside(limit: float, power: float) -> None:
    found = last_within(lambda value: power * math.log(value / limit), safe_end=1e-10, other_end=1.0, start=0.01)
    assert found is not None
    assert -1e-3 <= power * math.log(found / limit) <= 0


@given(limit=st.floats(0.06, 1e6), power=st.floats(0.2, 2.0))
def test_the_safe_end_may_be_the_larger_one(limit: float, power: float) -> None:
    found = last_within(lambda value: -power * math.log(value / limit), safe_end=1e7, other_end=0.05, start=1.0)
    assert found is not None
    assert -1e-3 <= -power * math.log(found / limit) <= 0


def test_nothing_within_gives_none() -> None:
    assert last_within(lambda value: 1.0, safe_end=1, other_end=100, start=10) is None


def test_everything_within_gives_the_other_end() -> None:
    assert last_within(lambda value: -1.0, safe_end=1, other_end=100, start=10) == 100


def test_a_jump_over_the_limit_is_found_from_inside() -> None:
    found = last_within(
        lambda value: -OUT_OF_SIGHT if value < 50 else OUT_OF_SIGHT, safe_end=1, other_end=10**6, start=1000
    )
    assert found == pytest.approx(50, rel=1e-9)
    assert found is not None
    assert found < 50


def test_what_is_returned_was_itself_evaluated_and_found_within() -> None:
    seen: dict[float, float] = {}

    def noisy(value: float) -> float:
        seen[value] = math.log(value / 777) + 1e-4 * math.sin(1e6 * value)
        return seen[value]

    found = last_within(noisy, safe_end=1, other_end=10**6, start=1000)
    assert found is not None
    assert seen[found] <= 0


DELTA, EPSILON, SIGMA, STEPS, PROBABILITY = 1e-5, 2.0, 1.1, 1500, 0.01


@pytest.mark.parametrize("reference", DPSGD)
def test_steps_are_the_reference_values(reference: Reference) -> None:
    assert (
        largest_steps(lambda steps: Repeated(reference.step, steps), Target(3.0, 1e-5)) == reference.steps_at_epsilon_3
    )


def test_all_four_given_numbers_fit_together() -> None:
    spent = calibrate(delta=DELTA, noise_multiplier=SIGMA, steps=STEPS, sampling_probability=PROBABILITY)
    assert spent.epsilon == bound(spent.event, delta=DELTA).epsilon
    assert spent.event == Repeated(PoissonSampled(PROBABILITY, Gaussian(SIGMA)), STEPS)


def test_noise_is_the_least_that_does_not_overshoot() -> None:
    found = calibrate(delta=DELTA, epsilon=EPSILON, steps=STEPS, sampling_probability=PROBABILITY)
    assert 0.999 * EPSILON <= found.epsilon <= EPSILON
    assert found.epsilon == bound(found.event, delta=DELTA).epsilon


def test_sampling_is_the_most_that_does_not_overshoot() -> None:
    found = calibrate(delta=DELTA, epsilon=EPSILON, steps=STEPS, noise_multiplier=SIGMA)
    assert 0.999 * EPSILON <= found.epsilon <= EPSILON
    assert found.epsilon == bound(found.event, delta=DELTA).epsilon


def test_one_more_step_would_overshoot() -> None:
    found = calibrate(delta=DELTA, epsilon=EPSILON, noise_multiplier=SIGMA, sampling_probability=PROBABILITY)
    one_more = Setting(epsilon=0.0, noise_multiplier=SIGMA, sampling_probability=PROBABILITY, steps=found.steps + 1)
    assert found.epsilon <= EPSILON < bound(one_more.event, delta=DELTA).epsilon


@pytest.mark.parametrize("settings", sizes(1, whole=36))
def test_it_round_trips_over_the_whole_box(settings: int) -> None:
    tried = 0
    for drawn in in_the_whole_box(settings, seed=21):
        delta, epsilon = drawn.delta, bound(drawn.event, delta=drawn.delta).epsilon
        if not 1e-6 < epsilon < 1e6:
            continue  # nothing is lost, or nothing is left, at any neighbouring setting
        tried += 1
        sigma, count, probability = drawn.noise_multiplier, drawn.steps, drawn.sampling_probability
        by_noise = calibrate(delta=delta, epsilon=epsilon, steps=count, sampling_probability=probability)
        assert 0.999 * epsilon <= by_noise.epsilon <= epsilon, drawn
        by_sampling = calibrate(delta=delta, epsilon=epsilon, steps=count, noise_multiplier=sigma)
        assert 0.999 * epsilon <= by_sampling.epsilon <= epsilon, drawn
        by_steps = calibrate(delta=delta, epsilon=epsilon, noise_multiplier=sigma, sampling_probability=probability)
        assert by_steps.epsilon <= epsilon, drawn
        assert by_steps.steps >= count * 0.99, drawn
        one_more = Repeated(PoissonSampled(probability, Gaussian(sigma)), by_steps.steps + 1)
        assert bound(one_more, delta=delta).epsilon > epsilon, drawn
    assert tried >= settings / 3


def test_a_whole_sample_without_replacement_is_the_largest_that_fits() -> None:
    target = Target(1.0, 1e-5, Adjacency.REPLACE_ONE)
    found = largest_sample(
        lambda size: Repeated(SampledWithoutReplacement(10_000, int(size), Gaussian(4.0)), 100),
        target,
        smallest=1,
        largest=10_000,
        whole=True,
    )
    one_more = Repeated(SampledWithoutReplacement(10_000, int(found) + 1, Gaussian(4.0)), 100)
    assert found == int(found)
    assert bound(one_more, delta=1e-5, adjacency=Adjacency.REPLACE_ONE).epsilon > 1.0


def test_a_target_that_even_every_record_keeps_gives_every_record() -> None:
    found = calibrate(delta=DELTA, epsilon=5.0, steps=1, noise_multiplier=50.0)
    assert found.sampling_probability == 1.0


@pytest.mark.parametrize(
    "given, words",
    [
        ({"epsilon": 1e-4, "noise_multiplier": 0.5, "sampling_probability": 1.0}, "passed by a single step"),
        ({"epsilon": 1e9, "noise_multiplier": 100.0, "sampling_probability": 1e-6}, "not used up even by 100000000"),
        ({"epsilon": 1e7, "steps": 1, "sampling_probability": 0.1}, "not used up even by a noise multiplier of 0.05"),
        ({"epsilon": 1e-12, "steps": 10**6, "sampling_probability": 1.0}, "even with a noise multiplier of 1e.07"),
    ],
)
def test_a_target_out_of_reach_is_named(given: dict[str, float], words: str) -> None:
    with pytest.raises(Unreachable, match=words):
        calibrate(delta=1e-12, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"epsilon": 1.0},
        {"epsilon": 1.0, "steps": 10},
        {"epsilon": 1.0, "steps": 10, "noise_multiplier": 1.0, "sampling_probability": 0.1},
    ],
)
def test_other_than_three_numbers_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="exactly three of epsilon, noise_multiplier, steps, sampling_probability"):
        calibrate(delta=DELTA, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, value",
    [
        ("epsilon", -1.0),
        ("epsilon", math.nan),
        ("steps", 0),
        ("steps", 2.5),
        ("sampling_probability", 1.5),
        ("sampling_probability", 0.0),
        ("sampling_probability", "0.1"),
        ("delta", 1.0),
    ],
)
def test_a_bad_number_is_refused_by_name(name: str, value: object) -> None:
    good: dict[str, object] = {"epsilon": 2.0, "steps": 10, "sampling_probability": 0.1, "delta": 1e-5}
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        calibrate(**{**good, name: value})  # type: ignore[arg-type]


def test_noise_beside_a_pure_mechanism_is_the_least_that_does_not_overshoot() -> None:
    def run_at(sigma: float) -> Event:
        return Composed((PureDP(0.5), Repeated(PoissonSampled(PROBABILITY, Gaussian(sigma)), 100)))

    found = smallest_noise_multiplier(run_at, Target(1.0, DELTA))
    assert 0.999 <= bound(run_at(found), delta=DELTA).epsilon <= 1.0
