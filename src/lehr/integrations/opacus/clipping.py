"""Opacus's ``clipping``: flat, per_layer and adaptive; and automatic (Bu et al. 2023), which Opacus does not have.

"adaptive" follows a quantile of the gradient norms (Andrew et al. 2021). The count of unclipped records is released
with the sum, as one more coordinate of the same vector, under the one noise multiplier of the step: see
``clipping.proof.md``.
Axis: B records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.gradients.batches import trainable
from lehr.interfaces import ClipRule, PrivateSum, RecordGradients, ReleasedSum
from lehr.privacy.clipping import LARGEST_CLIP_NORM, AutomaticClip, FlatClip, PerLayerClip

CLIPPINGS = ("flat", "per_layer", "automatic", "adaptive")


def clip_rule(
    clipping: str,
    max_grad_norm: float | Sequence[float],
    *,
    model: nn.Module | None,
    noise_multiplier: float,
    quantile: QuantileClip | None,
) -> ClipRule:
    """The clip rule of one step; ``model`` is needed for "per_layer".

    A clip norm above ``LARGEST_CLIP_NORM`` is reduced to it. Clip and noise both follow from that number.
    """
    if isinstance(max_grad_norm, int | float):
        max_grad_norm = min(max_grad_norm, LARGEST_CLIP_NORM)
    else:
        max_grad_norm = [min(norm, LARGEST_CLIP_NORM) for norm in max_grad_norm]
    if clipping == "per_layer" and model is not None:
        return _per_layer(max_grad_norm, model)
    if not isinstance(max_grad_norm, int | float):
        raise InvalidValue("max_grad_norm", allowed=f"one number for {clipping} clipping", given=max_grad_norm)
    if clipping == "adaptive" and quantile is not None:
        return quantile.rule(clip_norm=max_grad_norm, noise_multiplier=noise_multiplier)
    return AutomaticClip(max_grad_norm) if clipping == "automatic" else FlatClip(max_grad_norm)


def check_clipping(clipping: str, quantile: QuantileClip | None) -> str:
    """Return the name; adaptive clipping needs all of its settings, and the others none."""
    validate.one_of(CLIPPINGS, clipping=clipping)
    if (clipping == "adaptive") != (quantile is not None):
        names = "target_unclipped_quantile, clipbound_learning_rate, max_clipbound, min_clipbound, unclipped_num_std"
        raise InvalidValue("clipping", allowed=f'"adaptive" if and only if these are given: {names}', given=clipping)
    return clipping


def _per_layer(max_grad_norm: float | Sequence[float], model: nn.Module) -> PerLayerClip:
    """One number is split among the layers; a list has one norm per parameter, which are combined per layer."""
    if isinstance(max_grad_norm, int | float):
        return PerLayerClip(max_grad_norm)
    names = list(trainable(model))
    if len(max_grad_norm) != len(names):
        allowed = f"one number, or one for each of the {len(names)} parameters"
        raise InvalidValue("max_grad_norm", allowed=allowed, given=max_grad_norm)
    norms: dict[str, float] = {}
    for name, norm in zip(names, max_grad_norm, strict=True):
        layer = name.rpartition(".")[0]
        norms[layer] = math.hypot(norms.get(layer, 0.0), norm)
    return PerLayerClip.with_norms(norms)


COUNT = "number of records that were not clipped"


@dataclass(frozen=True, kw_only=True)
class QuantileRule:
    """A flat clip that also counts unclipped records: +½ for each of them, −½ for every other record.

    ``count_weight`` scales the count within the released vector. A record of norm zero, such as one that is masked,
    adds nothing to the count.
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
        norms_B = gradients.norms()
        halves_B = (norms_B <= self.clip_norm).to(norms_B.dtype) - 0.5
        count = halves_B.where(norms_B > 0, 0).sum(dtype=torch.float64)
        return PrivateSum(values={**clipped.values, COUNT: self.count_weight * count}, sensitivity=self.sensitivity)


@dataclass(frozen=True, kw_only=True)
class QuantileClip:
    """The settings of adaptive clipping; ``unclipped_num_std`` is the standard deviation of the count, in records."""

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
        """The rule for a step in which sum and count together have this noise multiplier."""
        share = noise_multiplier / (2 * self.unclipped_num_std)
        if not 0 <= share < 1:
            allowed = f"less than {2 * self.unclipped_num_std:g}, twice unclipped_num_std"
            raise InvalidValue("noise_multiplier", allowed=allowed, given=noise_multiplier)
        # This weight gives the count a noise of unclipped_num_std records; without noise any weight will do.
        whole = clip_norm / math.sqrt(1 - share * share)
        return QuantileRule(clip_norm=clip_norm, count_weight=2 * share * whole or clip_norm)

    def next_clip_norm(self, rule: QuantileRule, released: ReleasedSum, *, expected_batch_size: float) -> float:
        """The next clip norm, from released values and public numbers."""
        count = float(released.values[COUNT]) / rule.count_weight
        fraction = count / expected_batch_size + 0.5
        factor = math.exp(-self.clipbound_learning_rate * (fraction - self.target_unclipped_quantile))
        return min(max(rule.clip_norm * factor, self.min_clipbound), self.max_clipbound)
