"""Synthetic records, and what is checked on them: whether a model mixes records, or shares random numbers among them.

    SyntheticRecords   two images in the shapes and types of a batch, and weights near the model's own
    refuse_mixing      another neighbour in the batch must not change what a record meets at any layer
    shared_draws       whether some random number has to do with several records

These are checks on one pair of records and no proof (``record_axis`` is); a check in which nothing could have made a
difference says nothing. No private record takes part. Axes: N images, records times views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lehr.errors import NotPrivate
from lehr.gradients.batches import buffers_put_back
from lehr.gradients.execution import random_numbers_apart, rng_states
from lehr.gradients.precision import MARGINS
from lehr.gradients.refusals import described

_MOVE = 0.05
_MOST_MOVED = 2**16  # numbers of a frozen weight; larger ones are used where they are
_EDGE = 0.05  # positive numbers keep away from both ends, where logarithms and odds are not finite
Observed: TypeAlias = Sequence[tuple[str | None, Tensor]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class SyntheticRecords:
    """Two different images: of numbers of both signs or within (0, 1), in float64 or in the model's own type."""

    is_positive: bool
    is_wide: bool

    def batch(self, like: Any, num_images: int, rows: Sequence[int]) -> Any:
        """These rows, each 0 or 1, of the two images, in the shapes and types that a batch of ``num_images`` has.

        No two parts of an image are alike. What does not begin with the images is given to all of them.
        """

        def synthetic(leaf: Any, at: int) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if leaf.shape[:1] == (num_images,):
                return self._pair(leaf, at)[list(rows)].to(leaf.device)
            return self._typed(leaf)

        leaves, structure = pytree.tree_flatten(like)
        return pytree.tree_unflatten([synthetic(leaf, at) for at, leaf in enumerate(leaves)], structure)

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """Weights a little away from where they are, since a gain of zero hides what stands behind it; and buffers."""
        generators: dict[torch.device, torch.Generator] = {}
        values = {name: self._typed(buffer.detach().clone()) for name, buffer in model.named_buffers()}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad and not self.is_wide and parameter.numel() > _MOST_MOVED:
                values[name] = Parameter(parameter.detach(), requires_grad=False)
                continue
            own, device = self._typed(parameter.detach()), parameter.device
            if device not in generators:
                generators[device] = torch.Generator(device).manual_seed(0)
            by = _MOVE * torch.randn(parameter.shape, generator=generators[device], device=device)
            values[name] = Parameter(own + by.to(own.dtype), parameter.requires_grad)
        return values

    def _typed(self, values: Tensor) -> Tensor:
        return values.double() if self.is_wide and values.is_floating_point() else values

    def _pair(self, leaf: Tensor, at: int) -> Tensor:
        """Both images; ``at`` is the place of this part in an image."""
        shape = (2, *leaf.shape[1:])
        if leaf.is_floating_point():
            drawn = torch.randn(shape, generator=torch.Generator().manual_seed(at), dtype=torch.float64)
            drawn = drawn.abs().clamp(_EDGE, 1 - _EDGE) if self.is_positive else drawn
            return drawn if self.is_wide else drawn.to(leaf.dtype)
        if leaf.dtype is torch.bool:
            # They differ in the last place only: attention that is let see nothing has no finite output.
            masks = torch.full(shape, not self.is_positive)
            masks[1].reshape(-1)[-1:].fill_(self.is_positive)
            return masks
        words = (torch.arange(2) + at) % 2 + int(self.is_positive)
        return words.to(leaf.dtype).reshape(2, *(1 for _ in shape[1:])).expand(shape).clone()


ATTEMPTS = tuple(SyntheticRecords(is_positive, is_wide) for is_wide in (True, False) for is_positive in (False, True))


def run_apart(model: nn.Module, run: Callable[[Any], Result], inputs: Any) -> Result:
    """A run that leaves no trace in generators and in the model's buffers, and so repeats its random numbers."""
    put_back = buffers_put_back(model)
    try:
        with torch.no_grad(), random_numbers_apart(next(model.parameters(), torch.empty(0)).device):
            return run(inputs)
    finally:
        put_back()


_APART = (
    "keep the record axis first and apart, and let no layer look along it (positions that all records share are given "
    "to each, by positions.expand(num_records, -1)); or use the materialised engine, which runs every record alone"
)


def refuse_mixing(
    model: nn.Module, run: Callable[[Any], Observed], batch: Callable[[Sequence[int]], Any], *, few: int
) -> str | None:
    """Raise where one of two records of a batch meets something else when the other one is changed.

    ``batch(rows)`` makes a batch of ``few`` rows, each of which is image 0 or 1. ``run(inputs)`` runs the model on it
    and returns what each layer was given, with the path of the layer, and the model's outputs, with None. Returns why
    the try says nothing, where it says nothing.
    """

    def refuse(path: str | None, reason: str) -> None:
        layer = described(path or "", model.get_submodule(path or ""))
        raise NotPrivate(layer=layer, reason=reason, instead=_APART)

    orders = ([0, *[1] * (few - 1)], [1, *[0] * (few - 1)])  # a model that sorts its batch leaves one of them as it is
    try:
        alone = [run_apart(model, run, batch([image] * few)) for image in (0, 1)]
        mixed = [run_apart(model, run, batch(rows)) for rows in orders]
    except Exception as error:  # what is wrong with the model itself is said where it is run on its own records
        return f"it cannot be run on them: {error}"
    for path, values in mixed[0]:
        if path is not None and values.shape[:1] != (few,):
            refuse(path, f"the record axis does not come first in its input: {few} records give {[*values.shape]}")
    if len({tuple(path for path, _ in observed) for observed in (*alone, *mixed)}) > 1:
        refuse(None, "it calls other layers for other records")
    for rows, together in zip(orders, mixed, strict=True):
        for row in (0, 1):
            for (path, values), (_, others) in zip(together, alone[rows[row]], strict=True):
                # A loss or a summary beside the outputs of records need not agree.
                if values.shape[:1] == (few,) and not _close(values[row], others[row]):
                    refuse(path, "what it makes of one record changes with the other records of the batch")
    return _why_nothing(*alone, few=few)


def _why_nothing(first: Observed, second: Observed, *, few: int) -> str | None:
    """Numbers that are not finite agree with everything, and so do outputs that do not depend on the record at all."""
    outputs = [
        [values for path, values in one if path is None and values.shape[:1] == (few,)] for one in (first, second)
    ]
    # Where the model returns nothing that begins with the records, what its layers were given counts.
    some, others = (
        outputs if outputs[0] else [[values for path, values in one if path is not None] for one in (first, second)]
    )
    if not all(bool(values.isfinite().all()) for values in (*some, *others)):
        return "what it gives for them is not finite"
    if all(torch.equal(one[0], other[1]) for one, other in zip(some, others, strict=True)):
        return "it gives the same for all of them"
    return None


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    # Shapes and random numbers are the same, so that only a kernel's order of adding can make a difference.
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=MARGINS[one.dtype] * scale, equal_nan=True)


DRAWS_IN_PYTHON = "it draws from a generator of Python or NumPy, one number for all records that are run together"
_DRAWS_IN_TORCH = "it draws random numbers that all records that are run together share"
_MANY = 13  # a number of images that other axes are hardly multiples of


def shared_draws(model: nn.Module, run: Callable[[Any], Any], batch: Callable[[Sequence[int]], Any]) -> str | None:
    """Why some random number has to do with several records, such as one that decides whether all skip a layer.

    Records that happen to be run together would then have something in common, and one record more or less changes with
    whom. None where there is no such number; where the model cannot be run, that is said elsewhere.
    """

    def outputs_of(draws: _Draws) -> list[Any]:
        def drawing(inputs: Any) -> list[Any]:
            cpu = torch.device("cpu")
            before = rng_states(cpu)
            with draws:
                outputs = run(inputs)
            draws.is_of_python = before[0] != rng_states(cpu)[0]
            return pytree.tree_leaves(outputs)

        return run_apart(model, drawing, batch([place % 2 for place in range(_MANY)]))

    first = _Draws()
    try:
        outputs_of(first)
        if first.is_of_python:
            return DRAWS_IN_PYTHON
        if first.has_uniform and not first.has_other:  # such as a coin that is tossed and never heads
            low, high = outputs_of(_Draws(1e-6)), outputs_of(_Draws(1 - 1e-6))
            pairs = [(one, other) for one, other in zip(low, high, strict=True) if isinstance(one, Tensor)]
            if all(one.shape == other.shape and _close(one, other) for one, other in pairs):
                return None
    except Exception:
        return None
    return _DRAWS_IN_TORCH if first.has_uniform or first.has_other else None


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes random numbers whose first axis is not that of the images, also where other axes are folded into it.

    With a ``value``, this takes the place of such of them as lie between 0 and 1.
    """

    def __init__(self, value: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._value = value
        self.has_uniform = self.has_other = self.is_of_python = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) else result
        is_drawn = torch.Tag.nondeterministic_seeded in func.tags and isinstance(first, Tensor)
        if is_drawn and (not first.dim() or first.shape[0] % _MANY):
            name = func.overloadpacket.__name__.strip("_")
            is_uniform = name in ("rand", "rand_like", "uniform", "bernoulli")
            self.has_uniform, self.has_other = self.has_uniform or is_uniform, self.has_other or not is_uniform
            if is_uniform and self._value is not None:
                first.fill_(round(self._value) if name == "bernoulli" else self._value)
        return result
