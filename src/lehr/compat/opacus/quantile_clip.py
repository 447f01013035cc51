"""A clip norm that follows a quantile of the gradients' norms: Opacus's ``clipping="adaptive"``.

Andrew et al. (2021), "Differentially Private Learning with Adaptive Clipping". How many records were not clipped is
released beside the sum, as one more coordinate of the same vector, and both pay from the one noise multiplier of the
step. The paper's Theorem 1, and why no divisor here depends on a draw: ``quantile_clip.proof.md``. Axis: B records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from lehr import validate
from lehr.clipping.flat import FlatClip
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, RecordGradients, ReleasedSum

COUNT = "number of records that were not clipped"


@dataclass(frozen=True, kw_only=True)
class QuantileRule:
    """A flat clip that also counts who was not clipped: +½ for each such record, −½ for each other.

    ``count_weight`` is what one unit of the count weighs in the vector that is released. A record of norm zero, which
    is also what a record that does not count looks like, adds nothing to the count.
    """

    clip_norm: float
    count_weight: float

    def __post_init__(self) -> None:
        FlatClip(self.clip_norm)
        validate.positive(count_weight=self.count_weight)

    @property
    def sensitivity(self) -> float:
        return math.hypot(self.clip_norm, self.count_weight / 2)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        clipped = FlatClip(self.clip_norm)(gradients)
        norms_B = gradients.norms()  # noqa: N806
        halves_B = (norms_B <= self.clip_norm).to(norms_B.dtype) - 0.5  # noqa: N806
        count = halves_B.where(norms_B > 0, 0).sum(dtype=torch.float64)
        return PrivateSum(values={**clipped.values, COUNT: self.count_weight * count}, sensitivity=self.sensitivity)


@dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """How the clip norm moves. ``unclipped_num_std`` is the noise on the count, in records."""

    target_unclipped_quantile: float
    clipbound_learning_rate: float
    max_clipbound: float
    min_clipbound: float
    unclipped_num_std: float

    def __post_init__(self) -> None:
        validate.delta(target_unclipped_quantile=self.target_unclipped_quantile)
        validate.positive(clipbound_learning_rate=self.clipbound_learning_rate)
        validate.positive(unclipped_num_std=self.unclipped_num_std)
        FlatClip(self.min_clipbound)
        if not self.min_clipbound < self.max_clipbound:
            raise InvalidValue("max_clipbound", allowed=f"more than {self.min_clipbound}", given=self.max_clipbound)

    def rule(self, *, clip_norm: float, noise_multiplier: float) -> QuantileRule:
        """The rule of a step whose sum and count together have this noise multiplier."""
        share = noise_multiplier / (2 * self.unclipped_num_std)
        if not 0 <= share < 1:
            allowed = f"less than {2 * self.unclipped_num_std:g}, twice unclipped_num_std"
            raise InvalidValue("noise_multiplier", allowed=allowed, given=noise_multiplier)
        # Without noise any weight will do; with it, this one puts unclipped_num_std records of it on the count.
        whole = clip_norm / math.sqrt(1 - share * share)
        return QuantileRule(clip_norm=clip_norm, count_weight=2 * share * whole or clip_norm)

    def moved(self, rule: QuantileRule, released: ReleasedSum, *, expected_batch_size: float) -> float:
        """The next clip norm, from what was released and from public numbers."""
        count = float(released.values[COUNT]) / rule.count_weight
        fraction = count / expected_batch_size + 0.5
        factor = math.exp(-self.clipbound_learning_rate * (fraction - self.target_unclipped_quantile))
        return min(max(rule.clip_norm * factor, self.min_clipbound), self.max_clipbound)
