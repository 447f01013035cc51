"""Every acceptance keeps the protocol: its state survives a file, and deciding changes nothing but what it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from lehr.acceptance import Always, Annealed, BestStep, NoisyMax, NoisyTest, Salvage
from lehr.acceptance.proposal import (
    Acceptance,
    Decision,
    Energy,
    PrivateChoice,
    PrivateEnergy,
    PublicEnergy,
    energy_from_json,
)
from lehr.errors import InvalidValue
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


EVERY_ENERGY: list[Energy] = [
    PublicEnergy(),
    PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=64),
    PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=64, clipped="batch"),
    PrivateChoice(loss_clip=4.0, epsilon=0.01),
    PrivateChoice(loss_clip=4.0, epsilon=0.01, expected_batch_size=64),
]
SOUND = {"loss_clip": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 8}


@pytest.mark.parametrize("energy", EVERY_ENERGY, ids=str)
def test_the_form_in_a_file_reads_back_as_the_same(energy: Energy) -> None:
    assert energy_from_json(json.loads(json.dumps(energy.to_json()))) == energy


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "much"])
def test_a_number_that_is_not_sound_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=name):
        PrivateEnergy(**{**SOUND, name: value})
    if name != "noise_multiplier":
        with pytest.raises(InvalidValue, match=name):
            PrivateChoice(**{"loss_clip": 1.0, "epsilon": 1.0, name: value})


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_a_choice_without_a_sound_epsilon_is_refused(value: float) -> None:
    with pytest.raises(InvalidValue, match="epsilon"):
        PrivateChoice(loss_clip=1.0, epsilon=value)


def test_only_known_ways_of_clipping_are_there() -> None:
    with pytest.raises(InvalidValue, match="clipped must be one of batch, records"):
        PrivateEnergy(**SOUND, clipped="mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "shape",
    [
        None,
        "public",
        {},
        {"kind": ["public"]},
        {"kind": "noisy"},
        {"kind": "public", "records": 3},
        {"kind": "private", "loss_clip": 1.0},
        {"kind": "private", **SOUND, "delta": 1e-5},
        {"kind": "private", **SOUND, "loss_clip": "wide"},
        {"kind": "private choice", "epsilon": 1.0},
    ],
    ids=str,
)
def test_a_bad_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        energy_from_json(shape)
