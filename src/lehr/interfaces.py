"""The extension points: what the parts of a private step promise one another.

    records ─► gradients ─► clipping ─► PrivateSum ─► noise ─► ReleasedSum ─► optimizer

An engine turns a batch into ``RecordGradients``. A clip rule turns those into a ``PrivateSum``, which carries its own
sensitivity. Only adding noise turns that into a ``ReleasedSum``, and nothing else may reach the weights. The registry
of layer rules is here too, so that a layer defined anywhere can bring its own rule.

Axes: B records, K augmented views of one record, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue

Tensors: TypeAlias = Mapping[str, Tensor]
Inputs: TypeAlias = "Tensor | tuple[Tensor, ...] | dict[str, Tensor]"
Groups: TypeAlias = Sequence[Sequence[str]]
Clip: TypeAlias = Callable[[Tensors], Tensors]
ComponentState: TypeAlias = Mapping[str, "float | Tensor"]

# The one value of a sum that belongs to no parameter: how many records were not clipped (``QuantileRule``).
UNCLIPPED_COUNT = "number of records that were not clipped"


class Records(Protocol):
    """Records that can be fetched by their indices."""

    def __len__(self) -> int:
        """The number of records; private where the records are."""

    def batch(self, indices_B: Tensor) -> tuple[Inputs, Any]:
        """Inputs and targets of these records, each tensor beginning with the record axis."""


@runtime_checkable
class StreamedRecords(Records, Protocol):
    """Records that are read ahead while a step computes. Some may turn out to be unreadable."""

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Inputs, Any, Tensor]]:
        """For each part: inputs, targets, and a mask of the usable records."""


def batches(records: Records, parts: Sequence[Tensor]) -> Iterator[tuple[Inputs, Any, Tensor]]:
    """For each part of indices: inputs, targets, and a mask of the usable records."""
    if isinstance(records, StreamedRecords):
        yield from records.batches(parts)
    else:
        yield from ((*records.batch(part), torch.ones(len(part), dtype=torch.bool)) for part in parts)


class ViewTargets(NamedTuple):
    """Targets of a batch in which each view of a record has its own, and the factor of each view's loss.

    Tensors begin with the axes BK. K may be a part of the views: each entry then belongs to several of them.
    """

    targets: Any
    weights_BK: Tensor  # noqa: N815


class RecordGradients(Protocol):
    """The gradients of a batch, one for each record; they need not be stored.

    A record that the mask leaves out, and one whose gradient is not finite, counts as zero: its norm is zero and it
    adds nothing to any sum, whatever its weight. ``margin`` bounds how far rounding can put the norm of what is summed
    above the norm that was reported, relative to it; a clip rule divides by ``norms * (1 + margin)``. Groups name every
    parameter exactly once, and there is one weight for each record, or for each record and group.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable parameters, in the model's order."""

    @property
    def margin(self) -> float:
        """How much larger than reported a summed record's norm can be, relative to the reported one."""

    def norms(self, groups: Groups | None = None) -> Tensor:
        """The norm of each record's gradient: ``norms_B``, or ``norms_BG`` over groups of parameter names."""

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        """The sum over records in float64, each scaled by its weight: ``weights_B``, or ``weights_BG`` of groups."""


@runtime_checkable
class CoordinateGradients(RecordGradients, Protocol):
    """Gradients that can also be clipped by coordinate; only the materialised engine offers them."""

    def clipped_sum(self, clip: Clip) -> dict[str, Tensor]:
        """The sum over records, in float64, of ``clip(gradients)``: ``{name: grads_B...}`` to the same shapes."""


@dataclass(frozen=True, kw_only=True)
class PrivateSum:
    """A sum over records without noise. It may only be released by adding noise.

    Adding or removing one record moves ``values``, all of them taken as one vector, by at most ``sensitivity`` in norm.
    There is a value for each parameter, and perhaps ``UNCLIPPED_COUNT``. ``bounds``, in the shapes of ``values``, are
    bounds for each coordinate, where a clip rule has them.
    """

    values: dict[str, Tensor]
    sensitivity: float
    bounds: dict[str, Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class ReleasedSum:
    """A sum with its noise: it may be stored, printed, and used to update the weights.

    The noise is described by its standard deviation, one for all coordinates or one for each, and by its multiplier:
    the standard deviation over the sensitivity.
    """

    values: dict[str, Tensor]
    noise_std: float | dict[str, Tensor] = 0.0
    noise_multiplier: float = 0.0

    def std_of(self, name: str) -> Tensor | float:
        """The standard deviation of a parameter's noise: one number, or one for each coordinate in float64.

        >>> ReleasedSum(values={"weight": torch.ones(2)}, noise_std=0.5).std_of("weight")
        0.5
        """
        return self.noise_std[name].double() if isinstance(self.noise_std, dict) else self.noise_std

    @property
    def of_parameters(self) -> dict[str, Tensor]:
        """The values that belong to parameters: all but ``UNCLIPPED_COUNT``."""
        return {name: value for name, value in self.values.items() if name != UNCLIPPED_COUNT}


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """All that the slots may learn from a step: every field is public."""

    released: ReleasedSum
    divisor: float
    is_accepted: bool


class ClipRule(Protocol):
    """Bounds what one record can do to the sum, and states the bound."""

    @property
    def sensitivity(self) -> float:
        """The most by which one record, added or removed, moves the sum in norm."""

    def __call__(self, gradients: Any) -> PrivateSum:
        """The sum of the clipped gradients."""


class Clipping(Protocol):
    """Chooses the clip rule of every step, from the step's number and from what was released before.

    ``unproven`` is the reason why there is no guarantee, for clipping that looks at sums without noise, as one paper
    does. Such a step is charged as not private.
    """

    @property
    def needs_coordinates(self) -> bool:
        """Whether it needs ``CoordinateGradients``."""

    @property
    def unproven(self) -> str | None:
        """Why there is no guarantee; None where there is one."""

    def start(self, parameters: Tensors) -> ComponentState:
        """The state before the first step."""

    def rule(self, state: ComponentState, step: int) -> ClipRule:
        """The rule of this step, counted from zero."""

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        """The state after a step."""

    def peek(self, state: ComponentState, private: PrivateSum, *, divisor: float) -> ComponentState:
        """The state after looking at a private sum. Called only where ``unproven`` is set."""


class Contribution(Protocol):
    """What one use of one parameter adds to its gradients, in the form that is cheapest to hold."""

    def squared_norms(self) -> Tensor:
        """The squared norm of each record's part, ``squared_norms_B``, in float32 or better."""

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        """The sum of the parts, each scaled by its weight. A record that is not counted adds exactly nothing."""

    def materialised(self) -> Tensor:
        """Every record's part, ``grads_B...``."""


@dataclass(frozen=True)
class Site:
    """Inputs and output gradients at one place of a layer; both begin with the axes ``BK``."""

    inputs: Tensor
    output_grads: Tensor


Tap: TypeAlias = Callable[[str, Tensor, Tensor], Tensor]
Contributions: TypeAlias = Mapping[str, "Contribution | Tensor"]


@dataclass(frozen=True, kw_only=True)
class LayerRule:
    """How the gradients of one kind of layer follow from what went in and the gradient of what came out.

    ``contributions(layer, sites)`` names, for each parameter of the layer itself, its part of every record's gradient:
    a ``Contribution``, or simply the tensor ``grads_B...``. ``forward(layer, tap, *args, **kwargs)`` runs the layer and
    hands ``tap(site, inputs, output)`` every place where parameters act, going on with what ``tap`` returns; where it
    is not given, the layer has the one place ``"output"``, from its first argument to its result. ``refuses(layer)``
    says why a layer of this kind cannot be private as it is set up, or nothing. A rule that ``covers_children`` answers
    for the parameters of the layer's children as well. ``hooked_forward`` is used in the place of ``forward`` in a
    user's own loop, where nothing is compiled and few operations matter most.
    """

    contributions: Callable[[Any, Mapping[str, Site]], Contributions]
    forward: Callable[..., Any] | None = None
    hooked_forward: Callable[..., Any] | None = None
    refuses: Callable[[Any], str | None] | None = None
    covers_children: bool = False


_LAYER_RULES: dict[type[nn.Module], LayerRule] = {}
_RULE_FINDERS: list[Callable[[nn.Module], LayerRule | None]] = []


def register_layer_rule(kind: type[nn.Module], rule: LayerRule) -> None:
    """Register how the gradients of layers of this kind are computed for each record.

    The rule holds for the class itself and for subclasses that keep its ``forward``.
    """
    given: object = kind
    if not (isinstance(given, type) and issubclass(given, nn.Module)):
        raise InvalidValue("kind", allowed="a subclass of torch.nn.Module", given=kind)
    _LAYER_RULES[kind] = rule


def register_rule_finder(find: Callable[[nn.Module], LayerRule | None]) -> None:
    """Register a function that recognises layers of classes without a rule, from their parameters and what they do."""
    _RULE_FINDERS.append(find)


def layer_rule(layer: nn.Module) -> LayerRule | None:
    """The rule for a layer, or nothing. A subclass with its own ``forward`` is another layer and needs another rule."""
    for kind in type(layer).__mro__:
        if kind in _LAYER_RULES and type(layer).forward is kind.forward:
            return _LAYER_RULES[kind]
    return next((rule for find in _RULE_FINDERS if (rule := find(layer)) is not None), None)


def layer_rules() -> Mapping[type[nn.Module], LayerRule]:
    """Every rule there is."""
    return dict(_LAYER_RULES)


_WIDE = (torch.float64, torch.complex64, torch.complex128)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type in which norms and sums of this type are kept."""
    return dtype if dtype in _WIDE else torch.float32


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. From ordinary memory a copy to a GPU would wait for everything that the GPU has to do."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
