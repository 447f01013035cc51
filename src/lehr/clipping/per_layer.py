"""Per-layer clipping: each layer of a record's gradient is scaled down to a bound of its own.

McMahan et al. (2018), "Learning Differentially Private Recurrent Language Models". Axes: B records, G layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lehr.clipping.clip_norm import SMALLEST_CLIP_NORM, a_clip_norm
from lehr.clipping.fixed import FixedRule
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, RecordGradients


@dataclass(frozen=True)
class PerLayerClip(FixedRule):
    """Every layer of a record is scaled to at most its bound; the squares of all bounds add up to C squared.

    A layer is the module that owns the parameters. Each of L layers has the bound C / √L, unless ``shares`` names every
    layer with how much its bound weighs against the others'. Adding or removing one record moves the sum by at most C;
    replacing one, by at most 2 C.

    >>> PerLayerClip.with_norms({"encoder": 0.3, "decoder": 0.4}).sensitivity
    0.5
    """

    clip_norm: float
    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        a_clip_norm(clip_norm=self.clip_norm)
        object.__setattr__(self, "shares", _pairs(self.shares))
        names = [layer for layer, _ in self.shares]
        if len(set(names)) != len(names):
            raise InvalidValue("shares", allowed="every layer once", given=names)
        for _, share in self.shares:
            a_clip_norm(shares=share)
        for bound in _bounds(self.clip_norm, self.shares).values():
            a_clip_norm(shares=bound)

    @classmethod
    def with_norms(cls, clip_norms: Mapping[str, float]) -> PerLayerClip:
        """The rule in which every layer has the bound given for it by name."""
        norms = tuple((layer, a_clip_norm(clip_norms=norm)) for layer, norm in sorted(clip_norms.items()))
        return cls(clip_norm=math.hypot(*(norm for _, norm in norms)), shares=norms)

    @property
    def sensitivity(self) -> float:
        return float(self.clip_norm)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        layers = _layers(gradients.names)
        groups = tuple(layers.values())
        bounds = self._bounds_of(tuple(layers))
        norms_BG = gradients.norms(groups) * (1 + gradients.margin)  # noqa: N806
        weights_BG = torch.stack(  # noqa: N806
            [bound / norms_BG[:, index].clamp_min(bound) for index, bound in enumerate(bounds)], dim=1
        )
        return PrivateSum(values=gradients.weighted_sum(weights_BG, groups), sensitivity=self.sensitivity)

    def _bounds_of(self, layers: Sequence[str]) -> list[float]:
        bounds = _bounds(self.sensitivity, self.shares or tuple((layer, 1.0) for layer in layers))
        if set(bounds) != set(layers):
            raise InvalidValue("shares", allowed=f"one for each of the layers {list(layers)}", given=sorted(bounds))
        if not min(bounds.values()) >= SMALLEST_CLIP_NORM:
            allowed = f"at least {SMALLEST_CLIP_NORM:g} for each of {len(layers)} layers"
            raise InvalidValue("clip_norm", allowed=allowed, given=self.clip_norm)
        return [bounds[layer] for layer in layers]


def _pairs(shares: object) -> tuple[tuple[str, float], ...]:
    """As tuples, which nobody can change and which can be hashed."""
    try:
        return tuple((str(layer), share) for layer, share in shares)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise InvalidValue("shares", allowed="pairs of a layer and its share", given=shares) from None


def _layers(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The parameters of every layer, by the name of the module that owns them."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layers[_owner(name)] = (*layers.get(_owner(name), ()), name)
    return layers


def _owner(name: str) -> str:
    """The module of a parameter. One behind a computed weight is called ``layer.parametrizations.weight.original``."""
    dotted = f".{name}"
    computed = dotted.find(".parametrizations.")
    return dotted[1 : computed if computed >= 0 else dotted.rfind(".")]


def _bounds(clip_norm: float, shares: tuple[tuple[str, float], ...]) -> dict[str, float]:
    """The bound of every layer, in proportion to the shares; the squares add up to the square of the clip norm."""
    whole = math.sqrt(sum(share * share for _, share in shares))
    return {layer: clip_norm * (share / whole) for layer, share in shares}
