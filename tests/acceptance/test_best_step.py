"""Several step sizes of one released gradient, tried on public records."""

from __future__ import annotations

import math

import pytest

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed
from lehr.acceptance.best_step import BestStep
from lehr.acceptance.energy import PrivateChoice, PrivateEnergy
from lehr.acceptance.noisy_max import NoisyMax
from lehr.acceptance.noisy_test import NoisyTest
from lehr.acceptance.proposal import Acceptance
from lehr.errors import InvalidValue
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed

PRIVATE = PrivateEnergy(loss_clip=1.0, noise_multiplier=1.0, expected_batch_size=8)
SCALES = (0.5, 1.0, 2.0)


@pytest.mark.parametrize("best", SCALES)
def test_the_step_size_with_the_least_energy_is_the_one_that_goes_on(best: float) -> None:
    energies = {scale: 0.9 + abs(scale - best) / 100 for scale in SCALES}
    rule = BestStep(Annealed(), SCALES)
    proposal = Proposed(now=1.0, proposed=energies.pop(1.0), elsewhere=energies)
    decision = rule.decide(rule.start(), proposal, NOTHING_RELEASED)
    assert decision.step_scale == best
    assert decision.state["accepted"] == 1


def test_the_best_may_be_rejected_too_and_by_its_own_energy() -> None:
    rule = BestStep(Annealed(initial_inverse_temperature=10.0), SCALES)
    barely = Proposed(now=1.0, proposed=9.0, drawn=0.6, elsewhere={0.5: 1.05, 2.0: 9.0})  # e^-0.5 = 0.61
    hardly = Proposed(now=1.0, proposed=9.0, drawn=0.62, elsewhere={0.5: 1.05, 2.0: 9.0})
    assert rule.decide(rule.start(), barely, NOTHING_RELEASED).step_scale == 0.5
    assert rule.decide(rule.start(), hardly, NOTHING_RELEASED).step_scale == 0.0


def test_where_no_step_size_has_an_energy_nothing_is_accepted() -> None:
    rule = BestStep(Annealed(rejection_threshold=1), SCALES)
    lost = Proposed(now=1.0, proposed=math.inf, elsewhere={0.5: math.inf, 2.0: math.inf})
    state = rule.decide(rule.start(), lost, NOTHING_RELEASED).state
    assert rule.decide(state, lost, NOTHING_RELEASED).step_scale == 0.0


def test_one_within_another_multiplies_the_step_sizes() -> None:
    rule = BestStep(BestStep(Annealed(), (1.0, 2.0)), (0.5, 1.0))
    proposal = Proposed(now=1.0, proposed=0.8, elsewhere={0.5: 0.9, 2.0: 0.7})
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == 2.0


@pytest.mark.parametrize(
    "inner",
    [
        Annealed(energy=PRIVATE),
        NoisyTest(energy=PRIVATE),
        NoisyMax(energy=PrivateChoice(loss_clip=1.0, epsilon=1.0)),
        Always(),
    ],
    ids=lambda inner: str(inner.to_json()["kind"]),
)
def test_without_a_public_energy_it_is_refused(inner: Acceptance) -> None:
    with pytest.raises(InvalidValue, match="inner must be one with a public energy"):
        BestStep(inner)


@pytest.mark.parametrize("scales", [(), (0.0, 1.0), (math.nan,), (-1.0,)], ids=str)
def test_step_sizes_that_make_no_sense_are_refused(scales: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match="step_scales"):
        BestStep(Annealed(), scales)
