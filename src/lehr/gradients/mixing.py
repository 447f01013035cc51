"""A try whether a model mixes records: another neighbour in the batch must not change what a record meets at any layer.

It finds layers of the user's own that look across the batch, and layers to which the record axis does not come first.
It is a check on one pair of records, no proof, and a try in which nothing could have made a difference says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import NotPrivate
from lehr.gradients.precision import margin
from lehr.gradients.refusals import described

Sites: TypeAlias = Sequence[tuple[str, Tensor]]
Run: TypeAlias = Callable[[Any], tuple[Any, Sites]]

_APART = (
    "keep the record axis first and apart, and let no layer look along it (positions that all records share are given "
    "to each, by positions.expand(num_records, -1)); or use the materialised engine, which runs every record alone"
)


def refuse_mixed_records(model: nn.Module, run: Run, inputs: Any, *, num_images: int, views: int = 1) -> str | None:
    """Raise where one of two records of a batch meets something else when the other one is changed.

    ``run(inputs)`` runs the model and returns its outputs, and the path and the input of every layer that was listened
    to. The model's buffers are put back afterwards. Returns why the try says nothing, where it says nothing.
    """
    if num_images < 2 * views:
        return "there is only one record"

    def batch(rows: Sequence[int]) -> Any:
        return _chosen(inputs, num_images, [views * row for row in rows])

    return refuse_mixed_images(model, run, batch, few=other_number(num_images))


def other_number(num_images: int) -> int:
    """A number of images that is not the batch's own: an axis that has the same length by chance will not follow it."""
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
        for row in (0, 1):
            _refuse_unlike(model, both, alone[rows[row]], row, few)
    return _says_nothing(*alone, few=few)


def _refuse_unlike(model: nn.Module, both: tuple[Any, Sites], other: tuple[Any, Sites], row: int, few: int) -> None:
    for (path, values), (_, others) in zip(both[1], other[1], strict=True):
        if not _close(values[row], others[row]):
            _refuse(model, path, "what it is given of one record changes with the other records of the batch")
    if not _agree(both[0], other[0], row, few):
        _refuse(model, "", "what it gives for one record changes with the other records of the batch")


def _says_nothing(first: tuple[Any, Sites], second: tuple[Any, Sites], *, few: int) -> str | None:
    """Numbers that are not finite agree with everything, and so do outputs that do not depend on the record at all."""
    told = [_told(*one, few) for one in (first, second)]
    if not all(bool(value.isfinite().all()) for values in told for value in values):
        return "what it gives for them is not finite"
    if all(torch.equal(one[0], other[1]) for one, other in zip(*told, strict=True)):
        return "it gives the same for all of them"
    return None


def _told(outputs: Any, sites: Sites, few: int) -> list[Tensor]:
    """The outputs that begin with the records; where the model returns none, what its layers were given."""
    found = [value for value in pytree.tree_leaves(outputs) if _begins_with(value, few)]
    return found or [values for _, values in sites]


def _refuse(model: nn.Module, path: str, reason: str) -> None:
    raise NotPrivate(layer=described(path, model.get_submodule(path)), reason=reason, instead=_APART)


def _chosen(inputs: Any, num_images: int, rows: Sequence[int]) -> Any:
    def choose(leaf: Tensor) -> Tensor:
        return leaf[list(rows)] if leaf.shape[:1] == (num_images,) else leaf

    return pytree.tree_map_only(Tensor, choose, inputs)


def _agree(some: Any, others: Any, row: int, few: int) -> bool:
    """Of the outputs, those that begin with the records; a loss or a summary beside them need not."""
    pairs = zip(pytree.tree_leaves(some), pytree.tree_leaves(others), strict=True)
    return all(_close(one[row], other[row]) for one, other in pairs if _begins_with(one, few))


def _begins_with(value: Any, few: int) -> bool:
    return isinstance(value, Tensor) and value.shape[:1] == (few,)


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    # Shapes and random numbers are the same, so that only a kernel's order of adding can make a difference.
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=margin(one.dtype) * scale, equal_nan=True)


def run_apart(model: nn.Module, run: Run, inputs: Any) -> tuple[Any, Sites]:
    """A run that leaves no trace in torch's generators and the model's buffers, and so repeats its random numbers."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            return run(inputs)
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
