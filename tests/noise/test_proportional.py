"""ADADP's noise: σ √m s_i for each of the m coordinates that can move."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.events import Gaussian
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.proportional import ProportionalNoise
from lehr.rng import RunKey

RANDOMNESS = RunKey(bytes(range(32))).at(step=0, attempt=0)
VALUES = {"weight": torch.tensor([[1.0, 2.0, 3.0]]), "bias": torch.tensor([4.0])}


def released(private: PrivateSum) -> ReleasedSum:
    return ProportionalNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)


def test_the_noise_of_each_coordinate_is_the_multiplier_times_the_root_of_their_number_times_its_bound() -> None:
    bounds = {"weight": torch.tensor([[0.1, 7.0, 0.0]]), "bias": torch.tensor([1e-5])}
    out = released(PrivateSum(values=VALUES, sensitivity=7.1, bounds=bounds))
    assert isinstance(out.noise_std, dict)
    drawn = RANDOMNESS.normals("noise", VALUES)
    for name, bound in bounds.items():
        std = 2.0 * math.sqrt(3) * bound.double()  # three of four coordinates can move
        torch.testing.assert_close(out.noise_std[name], std, rtol=1.1e-6, atol=0)
        torch.testing.assert_close(out.values[name], (VALUES[name] + std * drawn[name]).float())


def test_a_sum_with_one_bound_for_all_of_it_gets_isotropic_noise() -> None:
    private = PrivateSum(values=VALUES, sensitivity=0.7)
    expected = IsotropicNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    out = released(private)
    assert out.noise_std == expected.noise_std == pytest.approx(1.4)
    assert all(torch.equal(out.values[name], expected.values[name]) for name in VALUES)


def test_it_is_charged_as_a_gaussian_of_its_multiplier() -> None:
    assert ProportionalNoise().event(1.7) == Gaussian(1.7)
    assert ProportionalNoise().needs_bounds
