"""Synthetic records, and what is checked on them: whether a model mixes records, or shares random numbers among them.

    SyntheticRecords       two images in the shapes and types of a batch, and weights near the model's own
    refuse_mixed_records   another neighbour in the batch must not change what a record meets at any layer
    draws_for_all          whether some random number has to do with several records

These are checks on one pair of records and no proof (``record_axis`` is); a check in which nothing could have made a
difference says nothing. No private record takes part. Axes: N images, records times views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lehr.errors import NotPrivate
from lehr.gradients.batches import buffers_put_back, each
from lehr.gradients.execution import python_rng_states, restore_python_rng
from lehr.gradients.precision import MARGINS
from lehr.gradients.refusals import described

_MOVE = 0.05
_EDGE = 0.05  # positive numbers keep away from both ends, where logarithms and odds are not finite


@dataclass(frozen=True)
class SyntheticRecords:
    """Two different images: of numbers of both signs or within (0, 1), in float64 or in the model's own type."""

    is_positive: bool
    is_wide: bool

    def batch(self, inputs: Any, *, num_images: int, rows: Sequence[int]) -> Any:
        """These rows, each 0 or 1, of the two images, in the shapes and types that a batch has."""

        def synthetic(leaf: Tensor, pair: Tensor) -> Tensor:
            if leaf.shape[:1] == (num_images,):
                return pair[list(rows)].to(leaf.device)
            return self._typed(leaf) if leaf.is_floating_point() else leaf

        return pytree.tree_map(
            lambda *both: synthetic(*both) if isinstance(both[0], Tensor) else both[0], inputs, self.pairs(inputs)
        )

    def pairs(self, batch: Any) -> Any:
        """Both images of everything that a batch consists of: no two parts of an image are alike."""
        leaves, structure = pytree.tree_flatten(batch)
        made = [
            self.pair(leaf, at=at) if isinstance(leaf, Tensor) and leaf.dim() else leaf
            for at, leaf in enumerate(leaves)
        ]
        return pytree.tree_unflatten(made, structure)

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """Weights a little away from where they are, since a gain of zero hides what stands behind it; and buffers."""
        generator = torch.Generator().manual_seed(0)
        values = {name: self._typed(buffer.detach().clone()) for name, buffer in model.named_buffers()}
        for name, parameter in model.named_parameters():
            own, by = self._typed(parameter.detach()), _MOVE * torch.randn(parameter.shape, generator=generator)
            values[name] = Parameter(own + by.to(own.device, own.dtype), parameter.requires_grad)
        return values

    def _typed(self, values: Tensor) -> Tensor:
        return values.double() if self.is_wide and values.is_floating_point() else values

    def pair(self, leaf: Tensor, *, at: int = 0) -> Tensor:
        """Both images, in the shape that an image of this batch has; ``at`` is the place of this part in an image."""
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


Sites: TypeAlias = Sequence[tuple[str, Tensor]]
Run: TypeAlias = Callable[[Any], tuple[Any, Sites]]

_APART = (
    "keep the record axis first and apart, and let no layer look along it (positions that all records share are given "
    "to each, by positions.expand(num_records, -1)); or use the materialised engine, which runs every record alone"
)


def refuse_mixed_records(model: nn.Module, run: Run, inputs: Any, *, num_images: int, views: int = 1) -> str | None:
    """Raise where one of two records of a batch meets something else when the other one is changed.

    ``run(inputs)`` runs the model and returns its outputs, and the path and the input of every layer that was hooked
    to. The model's buffers are put back afterwards. Returns why the try says nothing, where it says nothing.
    """
    if num_images < 2 * views:
        return "there is only one record"

    def batch(rows: Sequence[int]) -> Any:
        chosen = [views * row for row in rows]
        return each(lambda leaf: leaf[chosen] if leaf.shape[:1] == (num_images,) else leaf, inputs)

    return refuse_mixed_images(model, run, batch, few=other_number(num_images))


def other_number(num_images: int) -> int:
    """Another number of images than the batch has: an axis that has the same length by chance will not follow it."""
    return 3 if num_images == 2 else 2


def refuse_mixed_images(model: nn.Module, run: Run, batch: Callable[[Sequence[int]], Any], *, few: int) -> str | None:
    """The same for two images, of which ``batch(rows)`` makes a batch: each of its ``few`` rows is image 0 or 1."""
    orders = ([0, *[1] * (few - 1)], [1, *[0] * (few - 1)])  # a model that sorts its batch leaves one of them as it is
    try:
        alone = [run_apart(model, run, batch([image] * few)) for image in (0, 1)]
        mixed = [run_apart(model, run, batch(rows)) for rows in orders]
    except Exception as error:  # what is wrong with the model itself is said where it is run on its own records
        return f"it cannot be run on them: {error}"
    for path, values in mixed[0][1]:
        if values.shape[:1] != (few,):
            _refuse(
                model, path, f"the record axis does not come first in its input: {few} records give {[*values.shape]}"
            )
    for rows, both in zip(orders, mixed, strict=True):
        if {tuple(path for path, _ in sites) for _, sites in alone} != {tuple(path for path, _ in both[1])}:
            _refuse(model, "", "it calls other layers for other records")
        for row in (0, 1):
            _refuse_unlike(model, both, alone[rows[row]], row, few)
    return _says_nothing(*alone, few=few)


def _refuse_unlike(model: nn.Module, both: tuple[Any, Sites], other: tuple[Any, Sites], row: int, few: int) -> None:
    for (path, values), (_, others) in zip(both[1], other[1], strict=True):
        if not _close(values[row], others[row]):
            _refuse(model, path, "what it is given of one record changes with the other records of the batch")
    # Of the outputs, those that begin with the records; a loss or a summary beside them need not agree.
    pairs = zip(pytree.tree_leaves(both[0]), pytree.tree_leaves(other[0]), strict=True)
    if not all(_close(one[row], another[row]) for one, another in pairs if _begins_with(one, few)):
        _refuse(model, "", "what it gives for one record changes with the other records of the batch")


def _says_nothing(first: tuple[Any, Sites], second: tuple[Any, Sites], *, few: int) -> str | None:
    """Numbers that are not finite agree with everything, and so do outputs that do not depend on the record at all."""
    told = []
    for outputs, sites in (
        first,
        second,
    ):  # where the model returns none that begin with the records, its layers' inputs
        found = [value for value in pytree.tree_leaves(outputs) if _begins_with(value, few)]
        told.append(found or [values for _, values in sites])
    if not all(bool(value.isfinite().all()) for values in told for value in values):
        return "what it gives for them is not finite"
    if all(torch.equal(one[0], other[1]) for one, other in zip(*told, strict=True)):
        return "it gives the same for all of them"
    return None


def _refuse(model: nn.Module, path: str, reason: str) -> None:
    raise NotPrivate(layer=described(path, model.get_submodule(path)), reason=reason, instead=_APART)


def _begins_with(value: Any, few: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:1] == (few,)


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    # Shapes and random numbers are the same, so that only a kernel's order of adding can make a difference.
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=MARGINS[one.dtype] * scale, equal_nan=True)


def draws_for_all(model: nn.Module, run: Callable[[Any], Any], batch: Callable[[Sequence[int]], Any]) -> str | None:
    """Why some random number has to do with several records, such as one that decides whether all skip a layer.

    Records that happen to be run together would then have something in common, and one record more or less changes with
    whom. None where there is no such number; where the model cannot be run, that is said elsewhere.
    """

    def outputs_of(draws: _Draws) -> Any:
        def drawing(inputs: Any) -> tuple[Any, Sites]:
            before = python_rng_states()
            with draws:
                outputs = run(inputs)
            draws.is_of_python = before != python_rng_states()
            return outputs, []

        return run_apart(model, drawing, batch([place % 2 for place in range(_MANY)]))[0]

    first = _Draws()
    try:
        outputs_of(first)
        if first.is_of_python:
            return DRAWS_IN_PYTHON
        if first.has_uniform and not first.has_other:  # such as a coin that is tossed and never heads
            low, high = (pytree.tree_leaves(outputs_of(_Draws(value))) for value in (1e-6, 1 - 1e-6))
            pairs = [(one, other) for one, other in zip(low, high, strict=True) if isinstance(one, Tensor)]
            if all(one.shape == other.shape and _close(one, other) for one, other in pairs):
                return None
    except Exception:
        return None
    return _DRAWS_IN_TORCH if first.has_uniform or first.has_other else None


DRAWS_IN_PYTHON = "it draws from a generator of Python or NumPy, one number for all records that are run together"
_DRAWS_IN_TORCH = "it draws random numbers that all records that are run together share"
_MANY = 13  # a number of images that other axes are hardly multiples of


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


def run_apart(model: nn.Module, run: Run, inputs: Any) -> tuple[Any, Sites]:
    """A run that leaves no trace in generators and in the model's buffers, and so repeats its random numbers."""
    put_back, of_python = buffers_put_back(model), python_rng_states()
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            return run(inputs)
    finally:
        put_back()
        restore_python_rng(of_python)
