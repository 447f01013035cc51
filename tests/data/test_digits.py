from __future__ import annotations

import torch

from lehr.data import digits
from lehr.data.known import DIGITS
from lehr.data.overlap import overlap


def test_the_shipped_digits_are_as_many_as_is_public_and_divided_without_overlap() -> None:
    train, test = digits.read()
    assert (len(train), len(test)) == (DIGITS.records, DIGITS.test_records)
    assert overlap(train, test) == ()


def test_every_class_is_in_both_parts_and_pixels_are_in_the_unit_range() -> None:
    for part in digits.read():
        assert part.targets.bincount(minlength=10).min() >= 20
        assert (part.inputs.min().item(), part.inputs.max().item()) == (0.0, 1.0)
        assert part.inputs.shape[1:] == DIGITS.shape


def test_the_published_constants_normalise_it() -> None:
    train, test = digits.read()
    pixels = torch.cat([train.inputs, test.inputs])
    assert abs(pixels.mean().item() - DIGITS.mean[0]) < 1e-4
    assert abs(pixels.std().item() - DIGITS.std[0]) < 1e-4
