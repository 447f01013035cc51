"""A try whether a model mixes records: another neighbour in the batch must not change what comes out for a record.

It finds layers of the user's own that look across the batch, and models whose first axis is not the record axis. It is
a check on one pair of records with the weights of the moment, no proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import NotPrivate
from lehr.gradients.precision import margin


def refuse_mixed_records(
    model: nn.Module, run: Callable[[Any], Any], inputs: Any, *, num_images: int, views: int = 1
) -> None:
    """Raise where ``run(inputs)`` gives one of two records something else when the other one is changed.

    ``model`` is what is run: its buffers are put back afterwards. Nothing is tried where there is only one record, or
    where the model cannot be run on two, as with a mask that is as long as the batch and does not belong to records.
    """
    if num_images < 2 * views:
        return
    try:
        both, *alone = (
            _run_apart(model, run, _chosen(inputs, num_images, rows)) for rows in ((0, views), (0, 0), (views, views))
        )
    except Exception:  # whatever is wrong with the model itself will be said by the run that follows
        return
    if not all(_agree(both, other, row) for row, other in enumerate(alone)):
        raise NotPrivate(
            layer=f"the model ({type(model).__name__})",
            reason="what it gives for one record changes with the other records of the batch",
            instead="keep the record axis first, and let no layer look along it; or use the materialised engine, which "
            "runs every record alone",
        )


def _chosen(inputs: Any, num_images: int, rows: tuple[int, int]) -> Any:
    def choose(leaf: Tensor) -> Tensor:
        return leaf[list(rows)] if leaf.shape[:1] == (num_images,) else leaf

    return pytree.tree_map_only(Tensor, choose, inputs)


def _agree(some: Any, others: Any, row: int) -> bool:
    pairs = zip(pytree.tree_leaves(some), pytree.tree_leaves(others), strict=True)
    return all(
        _close(one[row], other[row]) for one, other in pairs if isinstance(one, Tensor) and one.shape[:1] == (2,)
    )


def _close(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point():
        return torch.equal(one, other)
    # Shapes and random numbers are the same, so that only a kernel's order of adding can make a difference.
    scale = float(one.nan_to_num().abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=0, atol=margin(one.dtype) * scale, equal_nan=True)


def _run_apart(model: nn.Module, run: Callable[[Any], Any], inputs: Any) -> Any:
    """A run that leaves no trace in torch's generators and the model's buffers, and so repeats its random numbers."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.no_grad(), torch.random.fork_rng(list(devices)):
            return run(inputs)
    finally:
        for buffer, before in kept:
            buffer.copy_(before)
