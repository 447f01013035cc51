"""ADADP's noise: every coordinate gets noise in proportion to its own bound.

Xu et al. (2020). With m coordinates that can move, bounds s_i and multiplier σ, the noise of coordinate i has standard
deviation σ √m s_i. A sum with one bound for all of it, as before ADADP knows the coordinates, gets isotropic noise.
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr.interfaces import SlotState, Tensors
from lehr.noise.shaped import ShapedNoise


@dataclass(frozen=True)
class ProportionalNoise(ShapedNoise):
    """Noise in proportion to the bounds of the coordinates, where there are such bounds."""

    def shape(self, bounds: Tensors, state: SlotState) -> Tensors:
        return bounds
