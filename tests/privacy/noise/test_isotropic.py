"""Isotropic noise has the scale it states, once for a whole draw, whatever the values are."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from lehr.accounting.accountant import bound
from lehr.accounting.events import Gaussian
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, StepOutcome
from lehr.privacy.noise import (
    BudgetedNoise,
    FixedNoise,
    IsotropicNoise,
    NoNoise,
    ProportionalNoise,
    with_rounding,
)
from lehr.privacy.rng import RunKey

KEY = RunKey(bytes(range(32)))
RANDOMNESS = KEY.at(step=0, attempt=0)
COUNT = 20_000


def released(
    values: Tensor, *, noise_multiplier: float = 1.5, sensitivity: float = 0.2, step: int = 0, attempt: int = 0
) -> Tensor:
    private = PrivateSum(values={"weight": values}, sensitivity=sensitivity)
    randomness = KEY.at(step=step, attempt=attempt)
    noised = IsotropicNoise().release(private, noise_multiplier=noise_multiplier, randomness=randomness)
    return noised.values["weight"]


def p_value(noise: Tensor, *, std: float) -> float:
    return float(stats.kstest(noise.double().numpy() / std, stats.norm.cdf).pvalue)


@pytest.mark.parametrize("noise_multiplier, sensitivity", [(1.5, 0.2), (0.01, 1.0), (40.0, 1e-3)])
def test_the_noise_has_the_multiplier_times_the_sensitivity_and_no_other_scale(
    noise_multiplier: float, sensitivity: float
) -> None:
    noise = released(torch.zeros(COUNT), noise_multiplier=noise_multiplier, sensitivity=sensitivity)
    std = noise_multiplier * sensitivity
    assert p_value(noise, std=std) > 1e-3
    for wrong in (2 / 3, 1.5, 0.9, 1.1):
        assert p_value(noise, std=wrong * std) < 1e-6


def test_the_far_tails_of_the_noise_are_there() -> None:
    """Of four million values some 17 lie beyond 4.6 standard deviations, half of them on each side."""
    noise = released(torch.zeros(4_000_000), noise_multiplier=2.0, sensitivity=0.5)
    for beyond in ((noise > 4.6).sum(), (noise < -4.6).sum()):
        assert stats.binomtest(int(beyond), len(noise), stats.norm.sf(4.6)).pvalue > 1e-3
    assert stats.binomtest(0, len(noise), stats.norm.sf(4.6)).pvalue < 1e-3


def test_the_sum_of_no_records_gets_the_same_noise_as_any_other() -> None:
    values = torch.linspace(-3, 3, COUNT, dtype=torch.float64)
    empty, full = released(torch.zeros(COUNT, dtype=torch.float64)), released(values)
    torch.testing.assert_close(full - empty, values, rtol=0, atol=1e-14)


def test_two_steps_and_two_attempts_have_independent_noise() -> None:
    first = released(torch.zeros(COUNT))
    for other in (released(torch.zeros(COUNT), step=1), released(torch.zeros(COUNT), attempt=1)):
        assert abs(stats.pearsonr(first, other).statistic) < 4 / math.sqrt(COUNT)
    assert stats.pearsonr(first, released(torch.ones(COUNT))).statistic > 0.99


def test_parameters_of_one_shape_have_noise_of_their_own() -> None:
    private = PrivateSum(values={"first": torch.zeros(COUNT), "second": torch.zeros(COUNT)}, sensitivity=1.0)
    found = IsotropicNoise().release(private, noise_multiplier=1.0, randomness=RANDOMNESS).values
    assert list(found) == ["first", "second"]
    assert all(abs(float(value.std()) - 1) < 4 / math.sqrt(COUNT) for value in found.values())
    assert abs(stats.pearsonr(found["first"], found["second"]).statistic) < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize(
    "dtype, kept",
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_noise_is_added_in_double_precision_and_rounded_once(dtype: torch.dtype, kept: torch.dtype) -> None:
    values = torch.linspace(-3, 3, 100).to(dtype)
    found = released(values)
    noise = RANDOMNESS.normals("noise", {"weight": values})["weight"] * (1.5 * with_rounding(0.2))
    assert found.dtype == kept
    assert found.equal((values.double() + noise).to(kept))


def test_the_private_sum_is_left_as_it_was() -> None:
    values = torch.zeros(5)
    released(values)
    assert values.tolist() == [0] * 5


def test_the_event_has_the_noise_multiplier() -> None:
    assert IsotropicNoise().event(1.23) == Gaussian(1.23)


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, True, None])
def test_a_noise_multiplier_or_a_sensitivity_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        IsotropicNoise().event(wrong)
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        released(torch.zeros(2), noise_multiplier=wrong)
    with pytest.raises(InvalidValue, match="sensitivity"):
        released(torch.zeros(2), sensitivity=wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_release_does_not_fail_by_what_the_records_are(bad: float) -> None:
    found = released(torch.tensor([bad, 0.0]))
    assert found.isfinite().tolist() == [False, True]


VALUES = {"weight": torch.ones(3)}


@pytest.mark.parametrize("noise", [IsotropicNoise(), NoNoise(), ProportionalNoise()], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_fixed_noise_learns_nothing_and_keeps_the_multiplier_of_the_plan(
    noise: FixedNoise, is_accepted: bool
) -> None:
    state = noise.start(VALUES)
    taken = StepOutcome(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=is_accepted)
    assert state == noise.learn(state, taken) == {}
    assert noise.factor(state) == 1.0


PRIVATE = PrivateSum(values={"weight": torch.arange(3, dtype=torch.bfloat16)}, sensitivity=1.0)


def test_the_sum_is_released_as_it_is_in_float32_or_better() -> None:
    found = NoNoise().release(PRIVATE, noise_multiplier=1.0, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
    assert found.values["weight"].tolist() == [0, 1, 2]
    assert found.values["weight"].dtype == torch.float32


def test_every_accountant_answers_infinity() -> None:
    event = NoNoise().event()
    assert event == Gaussian(0.0)
    assert bound(event, delta=1e-5).epsilon == math.inf


@pytest.mark.parametrize("wrong", [1.0, 1e-300, -1.0, math.nan, math.inf])
def test_an_event_with_noise_that_is_not_added_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier must be 0 where there is no noise"):
        NoNoise().event(wrong)


def test_what_is_known_about_the_noise_is_that_there_is_none() -> None:
    found = NoNoise().release(PRIVATE, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
    assert (found.noise_std, found.noise_multiplier) == (0.0, 0.0)


VALUES_budgeted = {"weight": torch.zeros(2)}


def after(noise: BudgetedNoise, *accepted: bool) -> SlotState:
    state = noise.start(VALUES_budgeted)
    for is_accepted in accepted:
        taken = StepOutcome(released=ReleasedSum(values=VALUES_budgeted), divisor=1.0, is_accepted=is_accepted)
        state = noise.learn(state, taken)
    return state


def cost(noise: BudgetedNoise, state: SlotState, *, noise_multiplier: float = 3.0) -> float:
    """1 / 2 σ² of the next measurement, over that of the first."""
    rho = 0.5 / (noise_multiplier * noise.factor(state)) ** 2
    return rho / (0.5 / noise_multiplier**2)


@pytest.mark.parametrize("growth", [0.1, 0.5, 2.0])
def test_after_a_refusal_both_measurements_together_cost_the_first_and_the_growth(growth: float) -> None:
    noise = BudgetedNoise(growth=growth)
    first, second = cost(noise, after(noise)), cost(noise, after(noise, False))
    assert first == pytest.approx(1)
    assert first + second == pytest.approx(1 + growth)
    third = cost(noise, after(noise, False, False))
    assert first + second + third == pytest.approx((1 + growth) ** 2)


def test_after_an_acceptance_a_whole_measurement_is_made_as_fine_as_the_last_one_became() -> None:
    noise = BudgetedNoise(growth=0.1)
    assert cost(noise, after(noise, True, True)) == pytest.approx(1)
    assert cost(noise, after(noise, True, False, True)) == pytest.approx(1.1)
    assert cost(noise, after(noise, False, False, True, True)) == pytest.approx(1.21)


def test_the_mean_by_precisions_of_all_measurements_at_some_weights_is_worth_the_whole() -> None:
    noise, precision = BudgetedNoise(growth=0.3), 0.0
    for refusals in range(5):
        state = after(noise, *[False] * refusals)
        precision += 1 / noise.factor(state) ** 2
        assert precision == pytest.approx(float(state["whole"]))


def test_what_is_released_has_the_noise_of_the_multiplier_that_it_is_given() -> None:
    """The factor is taken into the multiplier by whoever charges it, so that both use one number."""
    noise = BudgetedNoise()
    private = PrivateSum(values=VALUES_budgeted, sensitivity=0.5)
    state, randomness = after(noise, False), RunKey(bytes(32)).at(step=0, attempt=0)
    out = noise.release(private, noise_multiplier=4.0, randomness=randomness, state=state)
    assert (out.noise_std, out.noise_multiplier) == (4.0 * with_rounding(0.5), 4.0)
    assert noise.event(4.0) == Gaussian(4.0)


@pytest.mark.parametrize("wrong", [0.0, -0.1, math.nan, math.inf])
def test_a_growth_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="growth"):
        BudgetedNoise(growth=wrong)
