"""AGD's noise: what measurements cost, in zero-concentrated terms, adds up."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, Taken
from lehr.noise.budgeted import BudgetedNoise
from lehr.noise.isotropic import with_rounding
from lehr.rng import RunKey

VALUES = {"weight": torch.zeros(2)}


def after(noise: BudgetedNoise, *accepted: bool) -> SlotState:
    state = noise.start(VALUES)
    for is_accepted in accepted:
        taken = Taken(released=ReleasedSum(values=VALUES), divisor=1.0, is_accepted=is_accepted)
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
    private = PrivateSum(values=VALUES, sensitivity=0.5)
    state, randomness = after(noise, False), RunKey(bytes(32)).at(step=0, attempt=0)
    out = noise.release(private, noise_multiplier=4.0, randomness=randomness, state=state)
    assert (out.noise_std, out.noise_multiplier) == (4.0 * with_rounding(0.5), 4.0)
    assert noise.event(4.0) == Gaussian(4.0)


@pytest.mark.parametrize("wrong", [0.0, -0.1, math.nan, math.inf])
def test_a_growth_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="growth"):
        BudgetedNoise(growth=wrong)
