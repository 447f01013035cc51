"""A draw as physical batches of one size, so that nothing is compiled twice. Axis: P places of a physical batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lehr import validate
from lehr.rng import StepRandomness

ORDER = "order"  # the purpose of the numbers that it is drawn by


@dataclass(frozen=True)
class PhysicalBatch:
    """Places of records, and which of them were drawn; the others are padding and count for nothing."""

    places_P: Tensor  # noqa: N815
    mask_P: Tensor  # noqa: N815


def shuffled(places: Tensor, randomness: StepRandomness) -> Tensor:
    """The places in uniformly random order, so that who shares a physical batch does not follow from who is held.

    With a record less, the others keep their physical batches, all but one of them: ``lehr/mechanism.proof.md``.
    """
    return places[randomness.uniforms(ORDER, len(places)).argsort()]


def physical(places: Tensor, size: int) -> list[PhysicalBatch]:
    """The places in batches of ``size``, the last one filled up with place 0, masked. Of no places, no batch.

    >>> [batch.mask_P.tolist() for batch in physical(torch.tensor([3, 5, 8]), 2)]
    [[True, True], [True, False]]
    """
    missing = -len(places) % validate.count(size=size)
    padded = torch.cat([places, places.new_zeros(missing)])
    mask = torch.arange(len(padded)) < len(places)
    rows = zip(padded.view(-1, size), mask.view(-1, size), strict=True)
    return [PhysicalBatch(places_P=places_P, mask_P=mask_P) for places_P, mask_P in rows]
