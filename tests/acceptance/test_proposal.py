"""Every acceptance keeps the protocol: its state survives a file, and deciding changes nothing but what it returns."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from lehr.acceptance import Always, Annealed, BestStep, NoisyMax, NoisyTest, PrivateChoice, PrivateEnergy, Salvage
from lehr.acceptance.proposal import Acceptance, Decision
from lehr.interfaces import SlotState
from tests.acceptance.proposed import Proposed, released

PRIVATE = PrivateEnergy(loss_clip=0.1, noise_multiplier=1.0, expected_batch_size=8)
CHOICE = PrivateChoice(loss_clip=1.0, epsilon=0.1)
ALL: dict[str, Acceptance] = {
    "always": Always(),
    "annealed": Annealed(),
    "classic": Annealed(cooling="classic", cooling_rate=0.9),
    "private": Annealed(energy=PRIVATE),
    "noisy test": NoisyTest(energy=PRIVATE),
    "noisy max": NoisyMax(energy=CHOICE, step_sizes=2, adapted_every=2, headroom=0.0),
    "salvage": Salvage(Annealed()),
    "best step": BestStep(Annealed(), (0.5, 1.0, 2.0)),
    "both": BestStep(Salvage(Annealed()), (0.5, 1.0, 2.0)),
}
every_acceptance = pytest.mark.parametrize("acceptance", ALL.values(), ids=ALL.keys())


def proposed(drawn: float) -> Proposed:
    return Proposed(now=1.0, proposed=1.05, drawn=drawn, elsewhere={0.5: 1.02, 2.0: 1.2})


def through_a_file(state: SlotState) -> dict[str, float | Tensor]:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    return {**json.loads(json.dumps(numbers, allow_nan=False)), **load(save(tensors))}


def plain(state: SlotState) -> dict[str, object]:
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in state.items()}


def decided(acceptance: Acceptance, state: SlotState, drawn: float) -> Decision:
    return acceptance.decide(state, proposed(drawn), acceptance.combined(state, released(drawn, 1.0)))


@every_acceptance
def test_a_state_that_went_through_a_file_decides_the_same(acceptance: Acceptance) -> None:
    state = acceptance.start()
    for drawn in (0.1, 0.9, 0.95, 0.3, 0.99):
        one, other = decided(acceptance, state, drawn), decided(acceptance, through_a_file(state), drawn)
        assert (one.step_scale, plain(one.state)) == (other.step_scale, plain(other.state))
        state = one.state


@every_acceptance
def test_deciding_leaves_the_state_before_and_the_sum_as_they_were(acceptance: Acceptance) -> None:
    state = decided(acceptance, acceptance.start(), 0.999).state
    before, just = plain(state), released(3.0, 4.0)
    acceptance.decide(state, proposed(0.5), acceptance.combined(state, just))
    assert plain(state) == before
    assert just.values["weight"].tolist() == [3.0, 4.0]


@every_acceptance
def test_its_form_is_json_and_says_what_it_is(acceptance: Acceptance) -> None:
    form = acceptance.to_json()
    assert isinstance(form, Mapping)
    assert json.loads(json.dumps(form, allow_nan=False)) == form
    assert form["kind"]


def test_no_two_of_them_have_one_form() -> None:
    forms = [json.dumps(acceptance.to_json(), sort_keys=True) for acceptance in ALL.values()]
    assert len(set(forms)) == len(forms)


def test_a_step_of_no_size_is_a_rejection() -> None:
    assert not Decision(0.0, {}).is_accepted
    assert Decision(0.25, {}).is_accepted
    assert Decision(1.0, {"carried": torch.zeros(1)}).is_accepted
