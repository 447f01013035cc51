"""Isotropic noise has the scale it states, once for a whole draw, whatever the values are."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from lehr.errors import InvalidValue
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum
from lehr.noise import IsotropicNoise
from lehr.noise.isotropic import with_rounding
from lehr.rng import RunKey

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
