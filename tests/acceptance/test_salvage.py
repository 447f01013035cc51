"""Rejected sums are averaged into the next one at the same weights, and forgotten once the weights move."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.salvage import Salvage
from lehr.interfaces import ReleasedSum, SlotState
from tests.acceptance.proposed import Proposed, released

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
