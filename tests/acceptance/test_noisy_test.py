"""The noisy test of DPSUR."""

from __future__ import annotations

import math

import pytest

from lehr.acceptance.energy import PrivateEnergy, PublicEnergy
from lehr.acceptance.noisy_test import NoisyTest
from lehr.errors import InvalidValue
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed

ENERGY = PrivateEnergy(loss_clip=0.5, noise_multiplier=1.0, expected_batch_size=8)


def is_accepted(rule: NoisyTest, change: float) -> bool:
    return rule.decide(rule.start(), Proposed(now=0.0, proposed=change), NOTHING_RELEASED).is_accepted


@pytest.mark.parametrize("threshold, highest", [(-1.0, -0.5), (0.0, 0.0), (0.5, 0.25)])
def test_a_candidate_is_taken_where_the_change_is_at_most_so_many_clips(threshold: float, highest: float) -> None:
    rule = NoisyTest(energy=ENERGY, threshold=threshold)
    assert is_accepted(rule, highest)
    assert not is_accepted(rule, math.nextafter(highest, math.inf))


def test_a_public_energy_is_measured_as_it_is() -> None:
    rule = NoisyTest(energy=PublicEnergy(), threshold=-1.0)
    assert is_accepted(rule, -1.0)
    assert not is_accepted(rule, -0.9)


def test_a_candidate_without_an_energy_is_never_taken() -> None:
    assert not is_accepted(NoisyTest(energy=PublicEnergy(), threshold=1e6), math.nan)


def test_there_is_no_end_to_rejections_and_those_accepted_are_counted() -> None:
    rule = NoisyTest(energy=ENERGY)
    assert rule.most_rejections is None
    state = rule.start()
    for change in (-1.0, 1.0, -1.0):
        state = rule.decide(state, Proposed(now=0.0, proposed=change), NOTHING_RELEASED).state
    assert state == {"accepted": 2}


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf, 1e7])
def test_a_threshold_that_is_no_sound_number_is_refused(threshold: float) -> None:
    with pytest.raises(InvalidValue, match="threshold"):
        NoisyTest(energy=ENERGY, threshold=threshold)
