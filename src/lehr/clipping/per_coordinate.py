"""Per-coordinate clipping: each number of a record's gradient is cut off at a bound of its own.

It needs gradients that are stored record by record, which the materialised engine offers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lehr.clipping.clip_norm import a_clip_norm
from lehr.errors import InvalidValue
from lehr.interfaces import CoordinateGradients, PrivateSum, Tensors


@dataclass(frozen=True, eq=False)
class PerCoordinateClip:
    """Every coordinate g of a record becomes min(max(g, -b), b), with the bounds b given for each parameter by name.

    Adding or removing one record moves the sum by at most the norm of all bounds taken as one vector, and each
    coordinate by at most its bound; replacing one, by at most twice that. The bounds are copied when the rule is built.

    >>> PerCoordinateClip({"weight": torch.full((2, 8), 0.25)}).sensitivity
    1.0
    """

    bounds: Mapping[str, Tensor]
    sensitivity: float = field(init=False)

    def __post_init__(self) -> None:
        copied = {name: _checked(name, bound) for name, bound in self.bounds.items()}
        object.__setattr__(self, "bounds", copied)
        whole = math.hypot(*(float(bound.double().norm()) for bound in copied.values()))
        object.__setattr__(self, "sensitivity", a_clip_norm(bounds=whole))

    def __call__(self, gradients: CoordinateGradients) -> PrivateSum:
        if set(gradients.names) != set(self.bounds):
            raise InvalidValue("bounds", allowed=f"one for each of {list(gradients.names)}", given=sorted(self.bounds))
        values = gradients.clipped_sum(self._clip)
        return PrivateSum(values=values, sensitivity=self.sensitivity, bounds=dict(self.bounds))

    def _clip(self, grads: Tensors) -> Tensors:
        return {name: _clamped(name, grads_B, self.bounds[name]) for name, grads_B in grads.items()}


def _checked(name: str, bound: Tensor) -> Tensor:
    copied = bound.detach().clone()
    if not copied.is_floating_point() or not bool((copied.isfinite() & (copied >= 0)).all()):
        raise InvalidValue("bounds", allowed="finite numbers >= 0 in every tensor", given=f"{name}: {bound}")
    return copied


def _clamped(name: str, grads_B: Tensor, bound: Tensor) -> Tensor:  # noqa: N803
    if grads_B.shape[1:] != bound.shape:
        raise InvalidValue(
            "bounds", allowed=f"of shape {tuple(grads_B.shape[1:])} for {name}", given=tuple(bound.shape)
        )
    # The wider of both types is kept, so that a bound is never rounded up.
    wide = torch.promote_types(grads_B.dtype, bound.dtype)
    limit = bound.to(dtype=wide, device=grads_B.device)
    return torch.minimum(torch.maximum(grads_B.to(wide), -limit), limit)
