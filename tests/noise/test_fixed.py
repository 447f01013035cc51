"""Noises that are the same at every step: whatever was released, their multiplier is the plan's."""

from __future__ import annotations

import pytest
import torch

from lehr.interfaces import ReleasedSum, Taken
from lehr.noise.fixed import FixedNoise
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.none import NoNoise
from lehr.noise.proportional import ProportionalNoise

VALUES = {"weight": torch.ones(3)}


@pytest.mark.parametrize("noise", [IsotropicNoise(), NoNoise(), ProportionalNoise()], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_fixed_noise_learns_nothing_and_keeps_the_multiplier_of_the_plan(
    noise: FixedNoise, is_accepted: bool
) -> None:
    state = noise.start(VALUES)
    taken = Taken(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=is_accepted)
    assert state == noise.learn(state, taken) == {}
    assert noise.factor(state) == 1.0
