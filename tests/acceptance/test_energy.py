"""What may be asked: its settings, and its form in a file."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lehr.acceptance.energy import Energy, PrivateChoice, PrivateEnergy, PublicEnergy, from_json
from lehr.errors import InvalidValue

ALL: list[Energy] = [
    PublicEnergy(),
    PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=64),
    PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=64, clipped="batch"),
    PrivateChoice(loss_clip=4.0, epsilon=0.01),
    PrivateChoice(loss_clip=4.0, epsilon=0.01, expected_batch_size=64),
]
SOUND = {"loss_clip": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 8}


@pytest.mark.parametrize("energy", ALL, ids=str)
def test_the_form_in_a_file_reads_back_as_the_same(energy: Energy) -> None:
    assert from_json(json.loads(json.dumps(energy.to_json()))) == energy


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
        from_json(shape)
