"""The clip rules behind Opacus's words for them: flat, per_layer, adaptive; and automatic, which it does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from lehr import validate
from lehr.clipping import AutomaticClip, FlatClip, PerLayerClip
from lehr.clipping.clip_norm import LARGEST_CLIP_NORM
from lehr.compat.opacus.quantile_clip import QuantileClip
from lehr.errors import InvalidValue
from lehr.gradients.batches import trainable
from lehr.interfaces import ClipRule

CLIPPINGS = ("flat", "per_layer", "automatic", "adaptive")


def clip_rule(
    clipping: str,
    max_grad_norm: float | Sequence[float],
    *,
    model: nn.Module | None,
    noise_multiplier: float,
    quantile: QuantileClip | None,
) -> ClipRule:
    """The rule of one step. A norm beyond what arithmetic allows means "do not clip", and is the largest allowed.

    Clip and noise follow from the same number, so that a smaller one is as private. ``model`` is for "per_layer".
    """
    max_grad_norm = _within_range(max_grad_norm)
    if clipping == "per_layer" and model is not None:
        return _per_layer(max_grad_norm, model)
    if not isinstance(max_grad_norm, int | float):
        raise InvalidValue("max_grad_norm", allowed=f"one number for {clipping} clipping", given=max_grad_norm)
    if clipping == "adaptive" and quantile is not None:
        return quantile.rule(clip_norm=max_grad_norm, noise_multiplier=noise_multiplier)
    return AutomaticClip(max_grad_norm) if clipping == "automatic" else FlatClip(max_grad_norm)


def _within_range(max_grad_norm: float | Sequence[float]) -> float | Sequence[float]:
    if isinstance(max_grad_norm, int | float):
        return min(max_grad_norm, LARGEST_CLIP_NORM)
    return [min(norm, LARGEST_CLIP_NORM) for norm in max_grad_norm]


def checked_clipping(clipping: str, quantile: QuantileClip | None) -> str:
    """One of the words, with what adaptive clipping needs, and without it elsewhere."""
    validate.one_of(CLIPPINGS, clipping=clipping)
    if (clipping == "adaptive") != (quantile is not None):
        names = "target_unclipped_quantile, clipbound_learning_rate, max_clipbound, min_clipbound, unclipped_num_std"
        raise InvalidValue("clipping", allowed=f'"adaptive" where these are all given: {names}', given=clipping)
    return clipping


def _per_layer(max_grad_norm: float | Sequence[float], model: nn.Module) -> PerLayerClip:
    """One number is shared among the layers. Of a list, one for each parameter, those of a layer are put together."""
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
