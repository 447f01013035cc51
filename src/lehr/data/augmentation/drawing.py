"""What is drawn for an operation: the same numbers for the same generator, however the images look.

Every draw has one number for each view, and how many there are depends on the shape of the batch alone. So no record
can change what is drawn for another. Axis: M views, of all records.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue


def uniforms(low: float, high: float, *, like_M: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
    """One number between the two for each view, in the images' type, ready to be multiplied with them."""
    drawn_M = torch.rand(len(like_M), generator=generator, device=generator.device).to(like_M)  # noqa: N806
    return (low + (high - low) * drawn_M).view(-1, *[1] * (like_M.dim() - 1))


def places(count: int, *, like_M: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
    """One whole number from zero up to, and without, ``count`` for each view."""
    drawn_M = torch.randint(count, (len(like_M),), generator=generator, device=generator.device)  # noqa: N806
    return drawn_M.to(like_M.device)


def sometimes(changed_M: Tensor, otherwise_M: Tensor, *, probability: float, generator: torch.Generator) -> Tensor:  # noqa: N803
    """Each view changed with this probability, and as it was otherwise."""
    is_changed = uniforms(0.0, 1.0, like_M=otherwise_M, generator=generator) < probability
    return torch.where(is_changed, changed_M, otherwise_M)


def a_range(**named: object) -> tuple[float, float]:
    """Two positive numbers between which one is drawn."""
    ((name, value),) = named.items()
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InvalidValue(name, allowed="a pair of numbers", given=value)
    low, high = (validate.positive(**{name: end}) for end in value)
    if not low <= high:
        raise InvalidValue(name, allowed="a pair of numbers that do not fall", given=value)
    return low, high
