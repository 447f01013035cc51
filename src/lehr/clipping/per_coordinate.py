"""Per-coordinate clipping: each number of a record's gradient is cut off at a bound of its own.

It needs gradients that are stored record by record, which the materialised engine offers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lehr.clipping.clip_norm import a_clip_norm
from lehr.clipping.fixed import FixedRule
from lehr.errors import InvalidValue
from lehr.interfaces import CoordinateGradients, PrivateSum, RecordGradients, Tensors


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PerCoordinateClip(FixedRule):
    """Every coordinate g of a record becomes min(max(g, -b), b), with the bounds b given for each parameter by name.

    Adding or removing one record moves the sum by at most the norm of all bounds taken as one vector, and each
    coordinate by at most its bound; replacing one, by at most twice that. The bounds are copied when the rule is built
    and whenever they are handed out, so that nobody can change them behind the sensitivity.

    >>> PerCoordinateClip({"weight": torch.full((2, 8), 0.25)}).sensitivity
    1.0
    """

    _bounds: dict[str, Tensor]
    sensitivity: float

    needs_coordinates: ClassVar[bool] = True

    def __init__(self, bounds: Mapping[str, Tensor]) -> None:
        copied = {name: _checked(name, bound) for name, bound in bounds.items()}
        whole = math.hypot(*(float(bound.double().norm()) for bound in copied.values()))
        object.__setattr__(self, "_bounds", copied)
        object.__setattr__(self, "sensitivity", a_clip_norm(bounds=whole))

    @property
    def bounds(self) -> dict[str, Tensor]:
        return {name: bound.clone() for name, bound in self._bounds.items()}

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        if not isinstance(gradients, CoordinateGradients):
            allowed = "those of lehr.gradients.materialised.MaterialisedEngine, which can be looked at by coordinates"
            raise InvalidValue("gradients", allowed=allowed, given=type(gradients).__name__)
        if set(gradients.names) != set(self._bounds):
            raise InvalidValue("bounds", allowed=f"one for each of {list(gradients.names)}", given=sorted(self._bounds))
        values = gradients.clipped_sum(self._clip)
        return PrivateSum(values=values, sensitivity=self.sensitivity, bounds=self.bounds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PerCoordinateClip):
            return NotImplemented
        mine, theirs = self._bounds, other._bounds
        return mine.keys() == theirs.keys() and all(_same(mine[name], theirs[name]) for name in mine)

    def __hash__(self) -> int:
        return hash((self.sensitivity, frozenset((name, bound.shape) for name, bound in self._bounds.items())))

    def __repr__(self) -> str:
        shapes = {name: tuple(bound.shape) for name, bound in self._bounds.items()}
        return f"PerCoordinateClip(bounds of {shapes}, sensitivity={self.sensitivity:g})"

    def _clip(self, grads: Tensors) -> Tensors:
        return {name: _clamped(name, grads_B, self._bounds[name]) for name, grads_B in grads.items()}


def _checked(name: str, bound: object) -> Tensor:
    if not isinstance(bound, Tensor) or not bound.is_floating_point():
        raise InvalidValue("bounds", allowed="tensors of floating point numbers", given=f"{name}: {bound}")
    copied = bound.detach().clone()
    if not bool((copied.isfinite() & (copied >= 0)).all()):
        raise InvalidValue("bounds", allowed="finite numbers >= 0 in every tensor", given=f"{name}: {bound}")
    return copied


def _same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())


def _clamped(name: str, grads_B: Tensor, bound: Tensor) -> Tensor:  # noqa: N803
    if grads_B.shape[1:] != bound.shape:
        raise InvalidValue(
            "bounds", allowed=f"of shape {tuple(grads_B.shape[1:])} for {name}", given=tuple(bound.shape)
        )
    # The wider of both types is kept, so that a bound is never rounded up.
    wide = torch.promote_types(grads_B.dtype, bound.dtype)
    limit = bound.to(dtype=wide, device=grads_B.device)
    return torch.minimum(torch.maximum(grads_B.to(wide), -limit), limit)
