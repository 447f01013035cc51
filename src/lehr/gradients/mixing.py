"""A try whether a model mixes records: another neighbour in the batch must not change what a record meets at any layer.

It finds layers of the user's own that look across the batch, and layers to which the record axis does not come first.
It is a check on one pair of records with the weights of the moment, no proof.
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


def refuse_mixed_records(model: nn.Module, run: Run, inputs: Any, *, num_images: int, views: int = 1) -> None:
    """Raise where one of two records meets something else when the other one is changed.

    ``run(inputs)`` runs the model and returns its outputs, and the path and the input of every layer that was listened
    to. The model's buffers are put back afterwards. Nothing is tried where there is only one record, or where the model
    cannot be run on a few, as with a mask that is as long as the batch and does not belong to records.
    """
    if num_images < 2 * views:
        return
    # A number of images that is not the batch's own: an axis that has the same length by chance will not follow it.
    few = 3 if num_images == 2 else 2
    choices = ([0, *[views] * (few - 1)], [0] * few, [views] * few)
    try:
        both, *alone = (_run_apart(model, run, _chosen(inputs, num_images, rows)) for rows in choices)
    except Exception:  # whatever is wrong with the model itself will be said by the run that follows
        return
    for path, values in both[1]:
        if values.shape[:1] != (few,):
            _refuse(
                model, path, f"the record axis does not come first in its input: {few} records give {[*values.shape]}"
            )
    for row, other in enumerate(alone):
        for (path, values), (_, others) in zip(both[1], other[1], strict=True):
            if not _close(values[row], others[row]):
                _refuse(model, path, "what it is given of one record changes with the other records of the batch")
        if not _agree(both[0], other[0], row, few):
            _refuse(model, "", "what it gives for one record changes with the other records of the batch")


def _refuse(model: nn.Module, path: str, reason: str) -> None:
    raise NotPrivate(layer=described(path, model.get_submodule(path)), reason=reason, instead=_APART)


def _chosen(inputs: Any, num_images: int, rows: list[int]) -> Any:
    def choose(leaf: Tensor) -> Tensor:
        return leaf[rows] if leaf.shape[:1] == (num_images,) else leaf

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


def _run_apart(model: nn.Module, run: Run, inputs: Any) -> tuple[Any, Sites]:
    """A run that leaves no trace in torch's generators and the model's buffers, and so repeats its random numbers."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            return run(inputs)
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
