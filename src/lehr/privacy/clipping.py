"""Clipping: bounding how far one record can move a sum. The proofs are in ``clipping.proof.md``.

- ``FlatClip``, ``AutomaticClip``, ``PerLayerClip``: one clip norm; each can be chosen by the name it registers
- ``ScheduledClip``: a clip norm under a schedule; ``clipping_by_name`` also knows
- ``QuantileClip``: a clip norm that follows a quantile of gradient norms, by a noisy count of unclipped records
- ``PerCoordinateClip``: a bound for each coordinate; ``AdaptiveClip`` learns such bounds (ADADP)
- ``Unclipped``: for training without privacy

Axes: B records, G layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import (
    UNCLIPPED_COUNT,
    Clipping,
    ClipRule,
    ComponentState,
    CoordinateGradients,
    PrivateSum,
    RecordGradients,
    ReleasedSum,
    StepOutcome,
    Tensors,
)
from lehr.schedules import CONSTANT, Schedule

# A float32 norm whose squares underflow is off by far less than the smallest, and a norm never exceeds about 2e19, so
# neither C / norm nor the comparison with C can leave the range of float32.
SMALLEST_CLIP_NORM = 1e-9
LARGEST_CLIP_NORM = 1e9

CLIP_RULES: dict[str, type[NormClip]] = {}


def check_clip_norm(**named: object) -> float:
    """Return a number that can be a clip norm: float32 arithmetic with it stays within its range."""
    value = validate.at_least(SMALLEST_CLIP_NORM, **named)
    if not value <= LARGEST_CLIP_NORM:
        (name,) = named
        raise InvalidValue(name, allowed=f"a number <= {LARGEST_CLIP_NORM:g}", given=value)
    return value


class StatelessClipping:
    """Clipping that learns nothing from one step to the next."""

    needs_coordinates: ClassVar[bool] = False
    unproven: ClassVar[str | None] = None

    def start(self, parameters: Tensors) -> ComponentState:
        return {}

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        return state

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        return state


class FixedClip(StatelessClipping):
    """A clip rule that is used at every step."""

    def rule(self, state: ComponentState, step: int) -> Self:
        return self


@dataclass(frozen=True)
class NormClip(FixedClip):
    """A rule with one clip norm C, which is its sensitivity. A subclass with a ``name`` can be chosen by that name."""

    clip_norm: float

    def __init_subclass__(cls, *, name: str | None = None) -> None:
        if name is not None:
            CLIP_RULES[name] = cls

    def __post_init__(self) -> None:
        check_clip_norm(clip_norm=self.clip_norm)

    @property
    def sensitivity(self) -> float:
        return float(self.clip_norm)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        raise NotImplementedError


@dataclass(frozen=True)
class ScheduledClip(StatelessClipping):
    """A rule whose clip norm is multiplied by the schedule's factor at every step.

    >>> from lehr.schedules import StepDecay
    >>> halved = ScheduledClip(FlatClip(1.0), StepDecay(every=10, decay=0.5))
    >>> [halved.rule({}, step).sensitivity for step in (0, 10, 25)]
    [1.0, 0.5, 0.25]
    """

    clip: NormClip
    schedule: Schedule

    def rule(self, state: ComponentState, step: int) -> ClipRule:
        return replace(self.clip, clip_norm=self.clip.clip_norm * self.schedule.factor(step))


def clip_rule(name: str, clip_norm: float) -> NormClip:
    """Return the clip rule of this name with its default settings.

    >>> clip_rule("automatic", 0.5)
    AutomaticClip(clip_norm=0.5, stability=0.01)
    """
    return CLIP_RULES[validate.one_of(CLIP_RULES, clip=name)](clip_norm)


def with_schedule(clip: NormClip, schedule: Schedule) -> NormClip | ScheduledClip:
    """Return the rule under a schedule; the rule itself where that is constant."""
    return clip if schedule == CONSTANT else ScheduledClip(clip, schedule)


def clipping_by_name(
    name: str, clip_norm: float, *, schedule: Schedule = CONSTANT, target_quantile: float | None = None
) -> Clipping:
    """Return the clip rule of this name under a schedule, or ``QuantileClip``, which has a quantile and no schedule.

    >>> clipping_by_name("quantile", 1.0, target_quantile=0.7).target_quantile
    0.7
    """
    if validate.one_of((*CLIP_RULES, QUANTILE), clip=name) != QUANTILE:
        if target_quantile is not None:
            raise InvalidValue("target_quantile", allowed=f'given with clip="{QUANTILE}" only', given=target_quantile)
        return with_schedule(clip_rule(name, clip_norm), schedule)
    if schedule != CONSTANT:
        allowed = f'constant with clip="{QUANTILE}", whose clip norm follows the gradients'
        raise InvalidValue("clip_schedule", allowed=allowed, given=schedule)
    return QuantileClip(clip_norm) if target_quantile is None else QuantileClip(clip_norm, target_quantile)


@dataclass(frozen=True)
class Unclipped(FixedClip):
    """No clip, for training without privacy. The sensitivity is infinite, so no noise can be scaled by it."""

    @property
    def sensitivity(self) -> float:
        return math.inf

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        values = gradients.weighted_sum(torch.ones_like(gradients.norms()))
        return PrivateSum(values=values, sensitivity=self.sensitivity)


@dataclass(frozen=True)
class FlatClip(NormClip, name="flat"):
    """Every record is scaled by min(1, C / norm), so that it has at most norm C in the sum (Abadi et al. 2016).

    Adding or removing one record moves the sum by at most C; replacing one, by at most 2 C. A gradient of norm zero
    stays zero, a record that is not finite counts as zero, and an empty batch sums to zero.

    >>> FlatClip(clip_norm=0.1).sensitivity
    0.1
    """

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        bound = self.sensitivity
        norms_B = gradients.norms() * (1 + gradients.margin)
        # Dividing by no less than C is min(1, C / norm) without a division by zero.
        values = gradients.weighted_sum(bound / norms_B.clamp_min(bound))
        return PrivateSum(values=values, sensitivity=bound)


# Below this the squares in a float32 norm underflow, and it need not be near the true one: it counts as this much.
SMALLEST_NORM = 1e-8


@dataclass(frozen=True)
class AutomaticClip(NormClip, name="automatic"):
    """Every record is scaled by C / (norm + γ), AUTO-S; the stability constant γ keeps small gradients small.

    Bu et al. (2023), "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger".

    With ``stability=0`` the norms are all C (AUTO-V), except that gradients shorter than 1e-8 stay shorter. Adding or
    removing one record moves the sum by at most C; replacing one, by at most 2 C.

    >>> AutomaticClip(clip_norm=1.0).stability
    0.01
    """

    stability: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if not validate.non_negative(stability=self.stability) <= LARGEST_CLIP_NORM:
            raise InvalidValue("stability", allowed=f"a number <= {LARGEST_CLIP_NORM:g}", given=self.stability)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        norms_B = gradients.norms() * (1 + gradients.margin)
        weights_B = self.sensitivity / (norms_B.clamp_min(SMALLEST_NORM) + float(self.stability))
        return PrivateSum(values=gradients.weighted_sum(weights_B), sensitivity=self.sensitivity)


QUANTILE = "quantile"
RAMP = 0.1  # a count with a jump at C could change with the rounding of a norm


@dataclass(frozen=True, kw_only=True)
class QuantileRule:
    """A flat clip that also counts the records it does not clip, as one more coordinate of the sum.

    A record counts as +½ up to the norm C, as −½ from (1 + ``RAMP``)·C on, and in between in proportion. One whose
    reported norm is zero, such as one that is masked, counts as 0.

    The count is scaled to have the part ``count_share``, squared, of the squared sensitivity. Released with a noise
    multiplier z, it has noise of z / (2·count_share) records, and the sum that of z / √(1 − count_share²) times C.

    >>> QuantileRule(clip_norm=0.8, count_share=0.6).sensitivity
    1.0
    """

    clip_norm: float
    count_share: float

    def __post_init__(self) -> None:
        check_clip_norm(clip_norm=self.clip_norm)
        validate.delta(count_share=self.count_share)

    @property
    def sensitivity(self) -> float:
        return float(self.clip_norm) / math.sqrt(1 - self.count_share**2)

    @property
    def count_weight(self) -> float:
        """What one record that is not clipped counts for, against one that is."""
        return 2 * self.count_share * self.sensitivity

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        clipped = FlatClip(self.clip_norm)(gradients)
        norms_B = gradients.norms()
        halves_B = (0.5 - (norms_B / self.clip_norm - 1) / RAMP).clamp(-0.5, 0.5).where(norms_B > 0, 0)
        count = self.count_weight * halves_B.sum(dtype=torch.float64)
        return PrivateSum(values={**clipped.values, UNCLIPPED_COUNT: count}, sensitivity=self.sensitivity)


@dataclass(frozen=True)
class QuantileClip:
    """A flat clip whose clip norm follows a quantile of the norms of the records' gradients.

    Andrew et al. (2021), "Differentially Private Learning with Adaptive Clipping". After each step the clip norm is
    multiplied by exp(−η·(b − γ)), with the released part b of the expected batch that was not clipped, the
    ``target_quantile`` γ and the ``adaptation_rate`` η. ``clip_norm`` is that of the first step. Sum and count are one
    release with the plan's noise multiplier: ``QuantileRule``.

    >>> clip = QuantileClip(1.0)
    >>> released = ReleasedSum(values={UNCLIPPED_COUNT: torch.tensor(0.0)})  # half of the expected batch was clipped
    >>> clip.learn(clip.start({}), StepOutcome(released=released, divisor=100, is_accepted=True))
    {'clip_norm': 1.0}
    """

    clip_norm: float
    target_quantile: float = 0.5
    adaptation_rate: float = 0.2
    count_share: float = 0.1
    smallest: float = SMALLEST_CLIP_NORM
    largest: float = LARGEST_CLIP_NORM

    needs_coordinates: ClassVar[bool] = False
    unproven: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        QuantileRule(clip_norm=self.clip_norm, count_share=self.count_share)
        validate.delta(target_quantile=self.target_quantile)
        validate.positive(adaptation_rate=self.adaptation_rate)
        if not check_clip_norm(smallest=self.smallest) < check_clip_norm(largest=self.largest):
            raise InvalidValue("largest", allowed=f"more than {self.smallest}", given=self.largest)

    def start(self, parameters: Tensors) -> ComponentState:
        return {"clip_norm": float(self.clip_norm)}

    def rule(self, state: ComponentState, step: int) -> QuantileRule:
        return QuantileRule(clip_norm=float(state["clip_norm"]), count_share=self.count_share)

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        rule = self.rule(state, 0)
        counted = float(taken.released.values[UNCLIPPED_COUNT]) / rule.count_weight
        missed = counted / taken.divisor + 0.5 - self.target_quantile
        # From the smallest to the largest clip norm is a factor of less than exp(50), and exp has a largest argument.
        moved = rule.clip_norm * math.exp(min(max(-self.adaptation_rate * missed, -50.0), 50.0))
        return {"clip_norm": min(max(moved, self.smallest), self.largest)}

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        return state


@dataclass(frozen=True)
class PerLayerClip(NormClip, name="per-layer"):
    """Every layer of a record is scaled to at most its bound; the squares of all bounds add up to C squared.

    McMahan et al. (2018), "Learning Differentially Private Recurrent Language Models".

    A layer is the module that owns the parameters. Each of L layers has the bound C / √L, unless ``shares`` names every
    layer with how much its bound weighs against the others'. Adding or removing one record moves the sum by at most C;
    replacing one, by at most 2 C.

    >>> PerLayerClip.with_norms({"encoder": 0.3, "decoder": 0.4}).sensitivity
    0.5
    """

    shares: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        try:  # tuples, which cannot be changed and can be hashed
            object.__setattr__(self, "shares", tuple((str(layer), share) for layer, share in self.shares))
        except (TypeError, ValueError):
            raise InvalidValue("shares", allowed="pairs of a layer and its share", given=self.shares) from None
        for _, share in self.shares:
            check_clip_norm(shares=share)
        bounds = _bounds(self.clip_norm, self.shares)
        if len(bounds) != len(self.shares):
            raise InvalidValue("shares", allowed="every layer once", given=self.shares)
        for bound in bounds.values():
            check_clip_norm(shares=bound)

    @classmethod
    def with_norms(cls, clip_norms: Mapping[str, float]) -> PerLayerClip:
        """Return the rule with these bounds, by the names of the layers."""
        norms = tuple((layer, check_clip_norm(clip_norms=norm)) for layer, norm in sorted(clip_norms.items()))
        return cls(clip_norm=math.hypot(*(norm for _, norm in norms)), shares=norms)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        layers = _layers(gradients.names)
        groups = tuple(layers.values())
        bounds = self._bounds_of(tuple(layers))
        norms_BG = gradients.norms(groups) * (1 + gradients.margin)
        weights_BG = torch.stack(
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


def _layers(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the parameters of every layer, by the name of the module that owns them."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layers[_owner(name)] = (*layers.get(_owner(name), ()), name)
    return layers


def _owner(name: str) -> str:
    """Return the module of a parameter; that of ``layer.parametrizations.weight.original`` is ``layer``."""
    dotted = f".{name}"
    computed = dotted.find(".parametrizations.")
    return dotted[1 : computed if computed >= 0 else dotted.rfind(".")]


def _bounds(clip_norm: float, shares: tuple[tuple[str, float], ...]) -> dict[str, float]:
    """Return the bound of every layer, in proportion to the shares; the squares add up to the squared clip norm."""
    whole = math.sqrt(sum(share * share for _, share in shares))
    return {layer: clip_norm * (share / whole) for layer, share in shares}


@dataclass(frozen=True, init=False, eq=False, repr=False)
class PerCoordinateClip(FixedClip):
    """Every coordinate g of a record becomes min(max(g, -b), b), with the bounds b given for each parameter by name.

    Adding or removing one record moves the sum by at most the norm of all bounds taken as one vector, and each
    coordinate by at most its bound; replacing one, by at most twice that. The bounds are copied when the rule is built
    and whenever they are read, so that they always match the sensitivity.

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
        object.__setattr__(self, "sensitivity", check_clip_norm(bounds=whole))

    @property
    def bounds(self) -> dict[str, Tensor]:
        return {name: bound.clone() for name, bound in self._bounds.items()}

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        if not isinstance(gradients, CoordinateGradients):
            allowed = "those of lehr.gradients.materialised.MaterialisedEngine, which have coordinates"
            raise InvalidValue("gradients", allowed=allowed, given=type(gradients).__name__)
        if set(gradients.names) != set(self._bounds):
            raise InvalidValue("bounds", allowed=f"one for each of {list(gradients.names)}", given=sorted(self._bounds))
        values = gradients.clipped_sum(self._clip)
        return PrivateSum(values=values, sensitivity=self.sensitivity, bounds=self.bounds)

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


def _clamped(name: str, grads_B: Tensor, bound: Tensor) -> Tensor:
    if grads_B.shape[1:] != bound.shape:
        raise InvalidValue(
            "bounds", allowed=f"of shape {tuple(grads_B.shape[1:])} for {name}", given=tuple(bound.shape)
        )
    # The wider of both types is kept, so that a bound is never rounded up.
    wide = torch.promote_types(grads_B.dtype, bound.dtype)
    limit = bound.to(dtype=wide, device=grads_B.device)
    return torch.minimum(torch.maximum(grads_B.to(wide), -limit), limit)


RAW = "the bounds, and so the noise, follow sums of gradients that have no noise"


class Prior(Protocol):
    """The expected squares of mean gradients, coordinate by coordinate."""

    @property
    def unproven(self) -> str | None:
        """Why there is no guarantee; None where there is one."""

    def start(self, parameters: Tensors) -> ComponentState:
        """Return the state before the first step."""

    def learn(self, state: ComponentState, released: ReleasedSum, *, divisor: float) -> ComponentState:
        """Return the state after a sum was released."""

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        """Return the state after a sum was computed, before it has noise."""

    def squares(self, state: ComponentState) -> dict[str, Tensor] | None:
        """Return the expected squares, all above zero, or None while nothing is known."""


@dataclass(frozen=True, kw_only=True)
class RawPrior:
    """The paper's: a running mean of squared mean gradients, without noise. Used once √E′ varies over coordinates."""

    memory: float = 0.9
    least_variance: float = 1e-6

    unproven: ClassVar[str | None] = RAW

    def __post_init__(self) -> None:
        validate.delta(memory=self.memory)
        validate.non_negative(least_variance=self.least_variance)

    def start(self, parameters: Tensors) -> ComponentState:
        return _zeros(_SQUARE, parameters)

    def learn(self, state: ComponentState, released: ReleasedSum, *, divisor: float) -> ComponentState:
        return state

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        squares = {name: (value.double() / divisor).square() for name, value in private.values.items()}
        return _moved(state, _SQUARE, squares, memory=self.memory)

    def squares(self, state: ComponentState) -> dict[str, Tensor] | None:
        squares = _of(state, _SQUARE)
        roots = torch.cat([square.sqrt().flatten() for square in squares.values()])
        if not float(roots.var(correction=0)) > self.least_variance:
            return None
        return {name: square.clamp_min(_TINY) for name, square in squares.items()}


@dataclass(frozen=True, kw_only=True)
class ReleasedPrior:
    """A running mean of squared released means, less the variance of their noise; shrunk to the mean of its tensor.

    Increments are not clipped at zero: that would let the noise feed itself. The uncertainty of each coordinate's mean
    follows from the noise; where it explains all the spread within a tensor, the coordinates share the mean of their
    tensor. A coordinate counts as at least ``least_share`` of that mean.

    There are no squares while the mean over all coordinates is within ``significance`` standard errors of zero: bounds
    that follow only noise are worse than a flat clip.
    """

    memory: float = 0.99
    least_share: float = 0.1
    significance: float = 3.0

    unproven: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        validate.delta(memory=self.memory)
        validate.delta(least_share=self.least_share)
        validate.non_negative(significance=self.significance)

    def start(self, parameters: Tensors) -> ComponentState:
        return {**_zeros(_SQUARE, parameters), **_zeros(_VARIANCE, parameters), _LEARNT: 0.0}

    def learn(self, state: ComponentState, released: ReleasedSum, *, divisor: float) -> ComponentState:
        noise = _variances(released, divisor=divisor)
        known = _of(state, _SQUARE)
        squares, variances = {}, {}
        for name, value in released.values.items():
            squares[name] = (value.double() / divisor).square() - noise[name]
            signal = (known[name] / self._warmth(state)).clamp_min(0)
            variances[name] = 2 * noise[name].square() + 4 * noise[name] * signal
        state = _moved(state, _SQUARE, squares, memory=self.memory)
        state = _moved(state, _VARIANCE, variances, memory=self.memory**2, share=(1 - self.memory) ** 2)
        return {**state, _LEARNT: float(state[_LEARNT]) + 1}

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        return state

    def squares(self, state: ComponentState) -> dict[str, Tensor] | None:
        if not state[_LEARNT]:
            return None
        warmth = self._warmth(state)
        squares = {name: square / warmth for name, square in _of(state, _SQUARE).items()}
        variances = {name: variance / warmth**2 for name, variance in _of(state, _VARIANCE).items()}
        whole = float(torch.cat([square.flatten() for square in squares.values()]).mean())
        # Coordinates are independent.
        count = sum(square.numel() for square in squares.values())
        error = math.sqrt(math.fsum(float(variance.sum()) for variance in variances.values())) / count
        if not whole > self.significance * error:
            return None
        return {name: self._shrunk(square, variances[name], floor=whole) for name, square in squares.items()}

    def _shrunk(self, square: Tensor, variance: Tensor, *, floor: float) -> Tensor:
        """Shrink towards the mean of the tensor, by the share of the spread that the known uncertainty explains."""
        mean = square.mean().clamp_min(self.least_share**2 * floor)
        spread = square.var(correction=0)
        kept = (1 - variance.mean() / spread.clamp_min(_TINY)).clamp(0, 1)
        return (mean + kept * (square - mean)).clamp_min(self.least_share * mean)

    def _warmth(self, state: ComponentState) -> float:
        """Return the share of the truth that a running mean from zero has reached."""
        return 1.0 - float(self.memory ** max(1.0, float(state[_LEARNT])))


_SQUARE, _VARIANCE, _LEARNT = "square/", "variance/", "learnt"
_TINY = 1e-30


def _zeros(prefix: str, parameters: Tensors) -> dict[str, Tensor | float]:
    return {prefix + name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}


def _of(state: ComponentState, prefix: str) -> dict[str, Tensor]:
    found = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def _moved(
    state: ComponentState, prefix: str, seen: Mapping[str, Tensor], *, memory: float, share: float | None = None
) -> dict[str, Tensor | float]:
    """Return the state with these running means moved towards ``seen``."""
    share = 1 - memory if share is None else share
    moved = {prefix + name: memory * before + share * seen[name] for name, before in _of(state, prefix).items()}
    return {**state, **moved}


def _variances(released: ReleasedSum, *, divisor: float) -> dict[str, Tensor]:
    """Return the variances of the noise in a released mean."""
    return {
        name: torch.zeros_like(value, dtype=torch.float64) + (released.std_of(name) / divisor) ** 2
        for name, value in released.values.items()
    }


@dataclass(frozen=True, kw_only=True)
class AdaptiveClip:
    """ADADP's clip: a bound for each coordinate that follows the size of its gradients so far.

    Xu et al. (2020), "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning". A running mean
    of squared mean gradients, the prior, gives each coordinate a bound in proportion to its square root; until there is
    one, the clip is flat. The paper's prior has no noise (``RawPrior``), and no ε follows from it; ``ReleasedPrior``
    uses released sums.

    All bounds together have the norm ``clip_norm``. With a ``bound_scale``, the paper's β, they are that many times the
    square roots: with a prior from released sums, which are clipped, such bounds can only shrink.
    """

    clip_norm: float
    prior: Prior
    bound_scale: float | None = None

    needs_coordinates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_clip_norm(clip_norm=self.clip_norm)
        if self.bound_scale is not None:
            validate.positive(bound_scale=self.bound_scale)

    @property
    def unproven(self) -> str | None:
        return self.prior.unproven

    def start(self, parameters: Tensors) -> ComponentState:
        return self.prior.start(parameters)

    def rule(self, state: ComponentState, step: int) -> ClipRule:
        squares = self.prior.squares(state)
        if squares is None:
            return FlatClip(self.clip_norm)
        roots = {name: square.sqrt() for name, square in squares.items()}
        norm = math.hypot(*(float(root.double().norm()) for root in roots.values()))
        scale = self.clip_norm / norm if self.bound_scale is None else self.bound_scale
        if not SMALLEST_CLIP_NORM <= scale * norm <= LARGEST_CLIP_NORM:  # a prior that has diverged, or vanished
            return FlatClip(self.clip_norm)
        return PerCoordinateClip({name: scale * root for name, root in roots.items()})

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        return self.prior.learn(state, taken.released, divisor=taken.divisor)

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        return self.prior.peek(state, private, divisor=divisor)
