"""A key that is listened to gives the numbers of the key, and tells of every draw."""

from __future__ import annotations

import torch

from lehr.games.recorded_randomness import Draw, RecordedKey
from lehr.rng import RunKey

KEY = RunKey(bytes(range(32)))


def test_the_numbers_are_those_of_the_key() -> None:
    recorded, plain = RecordedKey.of(KEY, lambda draw: None).at(4, 1), KEY.at(4, 1)
    like = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    assert torch.equal(recorded.uniforms("sampling", 9), plain.uniforms("sampling", 9))
    normals = recorded.normals("noise", like), plain.normals("noise", like)
    assert all(torch.equal(normals[0][name], normals[1][name]) for name in like)
    assert recorded.seed("layers") == plain.seed("layers")
    generators = (step.generator("layers", "cpu") for step in (recorded, plain))
    first, second = (torch.rand(5, generator=generator) for generator in generators)
    assert torch.equal(first, second)


def test_every_draw_is_told_with_its_step_attempt_purpose_and_number() -> None:
    told: list[Draw] = []
    step = RecordedKey.of(KEY, told.append).at(4, 1)
    step.uniforms("sampling", 9)
    step.normals("noise", {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)})
    step.generator("augmentation", "cpu")
    assert told[:3] == [
        Draw(4, 1, "uniforms", "sampling", 9),
        Draw(4, 1, "normals", "noise", 9),
        Draw(4, 1, "generator", "augmentation"),
    ]


def test_the_secret_is_not_printed() -> None:
    assert str(KEY.secret) not in repr(RecordedKey.of(KEY, lambda draw: None))
