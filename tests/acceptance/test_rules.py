"""Every candidate is accepted, and nothing is asked about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Acceptance, Decision, PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.acceptance.rules import Always, BestStep, NoisyMax, NoisyTest, Salvage
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, SlotState
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed, Unasked, released


def test_every_candidate_is_accepted_without_a_look() -> None:
    always = Always()
    assert always.decide(always.start(), Unasked(), NOTHING_RELEASED) == Decision(1.0, {})
    assert always.energy is None
    assert always.most_rejections == 0


def test_a_candidate_is_made_from_what_was_just_released() -> None:
    just = released(1.0)
    assert Always().combined({}, just) is just


TEST_ENERGY = PrivateEnergy(loss_clip=0.5, noise_multiplier=1.0, expected_batch_size=8)


def is_accepted(rule: NoisyTest, change: float) -> bool:
    return rule.decide(rule.start(), Proposed(now=0.0, proposed=change), NOTHING_RELEASED).is_accepted


@pytest.mark.parametrize("threshold, highest", [(-1.0, -0.5), (0.0, 0.0), (0.5, 0.25)])
def test_a_candidate_is_taken_where_the_change_is_at_most_so_many_clips(threshold: float, highest: float) -> None:
    rule = NoisyTest(energy=TEST_ENERGY, threshold=threshold)
    assert is_accepted(rule, highest)
    assert not is_accepted(rule, math.nextafter(highest, math.inf))


def test_a_public_energy_is_measured_as_it_is() -> None:
    rule = NoisyTest(energy=PublicEnergy(), threshold=-1.0)
    assert is_accepted(rule, -1.0)
    assert not is_accepted(rule, -0.9)


def test_a_candidate_without_an_energy_is_never_taken() -> None:
    assert not is_accepted(NoisyTest(energy=PublicEnergy(), threshold=1e6), math.nan)


def test_there_is_no_end_to_rejections_and_those_accepted_are_counted() -> None:
    rule = NoisyTest(energy=TEST_ENERGY)
    assert rule.most_rejections is None
    state = rule.start()
    for change in (-1.0, 1.0, -1.0):
        state = rule.decide(state, Proposed(now=0.0, proposed=change), NOTHING_RELEASED).state
    assert state == {"accepted": 2}


@pytest.mark.parametrize("threshold", [math.nan, math.inf, -math.inf, 1e7])
def test_a_threshold_that_is_no_sound_number_is_refused(threshold: float) -> None:
    with pytest.raises(InvalidValue, match="threshold"):
        NoisyTest(energy=TEST_ENERGY, threshold=threshold)


ENERGY = PrivateChoice(loss_clip=1.0, epsilon=0.1)


@dataclass(frozen=True)
class Choosing(Unasked):
    """Chooses a place, whatever the step sizes, and notes them."""

    place: int
    asked: list[list[float]] = field(default_factory=list)

    def best(self, step_scales: Sequence[float]) -> int:
        self.asked.append(list(step_scales))
        return self.place


def chosen(rule: NoisyMax, state: SlotState, place: int) -> tuple[float, dict[str, Any]]:
    decision = rule.decide(state, Choosing(place), NOTHING_RELEASED)
    return decision.step_scale, dict(decision.state)


def test_step_sizes_are_equal_parts_of_the_largest_and_standing_still_is_one() -> None:
    rule, proposal = NoisyMax(energy=ENERGY, step_sizes=4, largest=2.0), Choosing(3)
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == 1.5
    assert proposal.asked == [[0.0, 0.5, 1.0, 1.5, 2.0]]


def test_standing_still_is_a_rejection_and_is_not_counted() -> None:
    rule = NoisyMax(energy=ENERGY, step_sizes=4, adapted_every=1)
    decision = rule.decide(rule.start(), Choosing(0), NOTHING_RELEASED)
    assert not decision.is_accepted
    assert decision.state == rule.start()
    assert rule.most_rejections is None


def test_the_largest_becomes_a_little_more_than_the_largest_that_was_chosen() -> None:
    rule = NoisyMax(energy=ENERGY, step_sizes=4, largest=2.0, adapted_every=3, headroom=0.1)
    state: SlotState = rule.start()
    for place in (1, 0, 3, 0):
        _, state = chosen(rule, state, place)
    assert state == {"largest": 2.0, "largest_chosen": 1.5, "accepted": 2}
    _, state = chosen(rule, state, 2)
    assert state["largest"] == pytest.approx(1.65)
    assert (state["largest_chosen"], state["accepted"]) == (0.0, 3)
    assert chosen(rule, state, 4)[0] == pytest.approx(1.65)


@pytest.mark.parametrize(
    "wrong",
    [{"step_sizes": 0}, {"largest": 0.0}, {"largest": math.nan}, {"adapted_every": 0}, {"headroom": -0.1}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        NoisyMax(energy=ENERGY, **wrong)
    assert [caught.value.name] == list(wrong)


PRIVATE_ENERGY = PrivateEnergy(loss_clip=1.0, noise_multiplier=1.0, expected_batch_size=8)
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
        Annealed(energy=PRIVATE_ENERGY),
        NoisyTest(energy=PRIVATE_ENERGY),
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


REJECTED, ACCEPTED = Proposed(now=1.0, proposed=9.0, drawn=0.99), Proposed(now=1.0, proposed=0.5)
RULE = Salvage(Annealed(cooling="floored"))


def after(state: SlotState, proposal: Proposed, just: ReleasedSum) -> tuple[ReleasedSum, SlotState]:
    combined = RULE.combined(state, just)
    return combined, RULE.decide(state, proposal, combined).state


def test_a_candidate_is_made_from_the_mean_of_all_sums_since_the_weights_moved() -> None:
    state: SlotState = RULE.start()
    sums = [released(float(k), 2.0 * k) for k in (1, 5, 12)]
    for just in sums:
        combined, state = after(state, REJECTED, just)
    torch.testing.assert_close(combined.values["weight"], torch.tensor([6.0, 12.0]))
    assert combined.noise_multiplier == pytest.approx(2.0 / math.sqrt(3))


def test_what_the_other_acceptance_says_about_momentum_is_passed_on() -> None:
    for keeps in (False, True):
        rule = Salvage(Annealed(cooling="floored", keeps_momentum=keeps))
        decisions = [rule.decide(rule.start(), proposal, released(1.0)) for proposal in (REJECTED, ACCEPTED)]
        assert [decision.is_accepted for decision in decisions] == [False, True]
        assert [decision.keeps_momentum for decision in decisions] == [keeps, keeps]


def test_a_sum_with_less_noise_counts_for_more() -> None:
    _, state = after(RULE.start(), REJECTED, released(0.0, noise_multiplier=1.0))
    combined, _ = after(state, REJECTED, released(10.0, noise_multiplier=2.0))
    assert float(combined.values["weight"]) == pytest.approx(10.0 / 5)
    assert combined.noise_multiplier == pytest.approx(1 / math.sqrt(1 + 1 / 4))


def test_the_mean_has_the_noise_that_it_says() -> None:
    generator = torch.Generator().manual_seed(3)
    state: SlotState = RULE.start()
    for noise_multiplier in (1.0, 3.0, 2.0):
        values = noise_multiplier * torch.randn(200_000, generator=generator)
        just = ReleasedSum(values={"weight": values}, noise_std=noise_multiplier, noise_multiplier=noise_multiplier)
        combined, state = after(state, REJECTED, just)
    assert isinstance(combined.noise_std, float)
    assert float(combined.values["weight"].std()) == pytest.approx(combined.noise_std, rel=0.02)
    assert combined.noise_std == pytest.approx(combined.noise_multiplier)


def test_what_was_carried_is_forgotten_after_an_acceptance() -> None:
    _, state = after(RULE.start(), REJECTED, released(1.0, 2.0))
    assert any(name.startswith("carried/") for name in state)
    _, state = after(state, ACCEPTED, released(3.0, 4.0))
    assert not any(name.startswith("carried/") for name in state)
    fresh = released(5.0, 6.0)
    assert RULE.combined(state, fresh) is fresh


def test_only_released_values_are_carried() -> None:
    """The state is a function of what was handed in: two that saw the same sums carry the same."""
    states = []
    for proposed in (9.0, 7.0):  # other energies, the same answer
        _, state = after(RULE.start(), Proposed(now=1.0, proposed=proposed, drawn=0.99), released(1.5))
        states.append(state)
    one, other = states
    assert one.keys() == other.keys()
    assert torch.equal(torch.as_tensor(one["carried/weight"]), torch.as_tensor(other["carried/weight"]))
    assert float(torch.as_tensor(one["carried/weight"])) == 1.5


def test_the_inner_rule_decides_and_remembers_as_if_it_were_alone() -> None:
    alone, state, held = Annealed(cooling="floored"), RULE.start(), Annealed(cooling="floored").start()
    for proposal in (REJECTED, ACCEPTED, REJECTED, REJECTED):
        just = released(1.0)
        decision = alone.decide(held, proposal, just)
        combined = RULE.combined(state, just)
        salvaged = RULE.decide(state, proposal, combined)
        assert salvaged.step_scale == decision.step_scale
        assert {name.removeprefix("inner/"): value for name, value in salvaged.state.items() if "inner/" in name} == (
            decision.state
        )
        state, held = salvaged.state, decision.state
    assert RULE.most_rejections == alone.most_rejections
    assert RULE.energy == alone.energy
