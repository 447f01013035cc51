"""Flat clipping: a record whose gradient is longer than the clip norm is scaled down to it.

Abadi et al. (2016), "Deep Learning with Differential Privacy". Axis: B records.
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr.clipping.clip_norm import a_clip_norm
from lehr.clipping.fixed import FixedRule
from lehr.interfaces import PrivateSum, RecordGradients


@dataclass(frozen=True)
class FlatClip(FixedRule):
    """Every record is scaled by min(1, C / norm), so that it has at most norm C in the sum.

    Adding or removing one record moves the sum by at most C; replacing one, by at most 2 C. A gradient of norm zero
    stays zero, a record that is not finite counts as zero, and an empty batch sums to zero.

    >>> FlatClip(clip_norm=0.1).sensitivity
    0.1
    """

    clip_norm: float

    def __post_init__(self) -> None:
        a_clip_norm(clip_norm=self.clip_norm)

    @property
    def sensitivity(self) -> float:
        return float(self.clip_norm)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        bound = self.sensitivity
        norms_B = gradients.norms() * (1 + gradients.margin)  # noqa: N806
        # Dividing by no less than C is min(1, C / norm) without a division by zero.
        values = gradients.weighted_sum(bound / norms_B.clamp_min(bound))
        return PrivateSum(values=values, sensitivity=bound)
