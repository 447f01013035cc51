"""Bounds for each coordinate that follow the size of its gradients so far: the clip of ADADP.

Xu et al. (2020), "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning". A running mean E′
of squared mean gradients gives each coordinate a bound in proportion to √E′. Until E′ says anything, a flat clip is
used. Where E′ comes from, and why it must not come from gradients without noise: ``lehr.clipping.prior``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lehr import validate
from lehr.clipping.clip_norm import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM, a_clip_norm
from lehr.clipping.flat import FlatClip
from lehr.clipping.per_coordinate import PerCoordinateClip
from lehr.clipping.prior import Prior
from lehr.interfaces import ClipRule, PrivateSum, SlotState, Taken, Tensors


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """Each coordinate is cut off in proportion to the square root of its prior; before that says anything, a flat clip.

    All bounds together have the norm ``clip_norm``. With a ``bound_scale``, the paper's β, they are that many times the
    square roots themselves: over a prior from released sums, which are clipped, such bounds can only shrink.
    """

    clip_norm: float
    prior: Prior
    bound_scale: float | None = None

    needs_coordinates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        a_clip_norm(clip_norm=self.clip_norm)
        if self.bound_scale is not None:
            validate.positive(bound_scale=self.bound_scale)

    @property
    def unproven(self) -> str | None:
        return self.prior.unproven

    def start(self, parameters: Tensors) -> SlotState:
        return self.prior.start(parameters)

    def rule(self, state: SlotState, step: int) -> ClipRule:
        squares = self.prior.squares(state)
        if squares is None:
            return FlatClip(self.clip_norm)
        roots = {name: square.sqrt() for name, square in squares.items()}
        norm = math.hypot(*(float(root.double().norm()) for root in roots.values()))
        scale = self.clip_norm / norm if self.bound_scale is None else self.bound_scale
        if not SMALLEST_CLIP_NORM <= scale * norm <= LARGEST_CLIP_NORM:  # a prior that has diverged, or vanished
            return FlatClip(self.clip_norm)
        return PerCoordinateClip({name: scale * root for name, root in roots.items()})

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        return self.prior.learn(state, taken.released, divisor=taken.divisor)

    def peek(self, state: SlotState, private: PrivateSum, *, divisor: float) -> SlotState:
        return self.prior.peek(state, private, divisor=divisor)
