"""Whether the loss of a batch is that of its records, each for itself.

A loop that is not Lehr's may compute any loss. One that looks at several records at once, such as a contrastive one, or
a mean over tokens of sentences of different length, is not the mean over records that a clip bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import NotPrivate
from lehr.trainee import evaluating

RELATIVE, ABSOLUTE = 1e-3, 1e-6  # what rounding may do


def refuse_shared_loss(
    model: nn.Module,
    loss_of: Callable[[Any], Tensor],
    batch: Any,
    *,
    num_records: int,
    loss_reduction: str,
) -> bool:
    """Compare the loss of two records with their losses alone; whether that could be done.

    It cannot where a batch is not made of tensors that begin with the records, nor on a record whose loss is not
    finite, which counts as nothing in training and must not stop it.
    """
    leaves = pytree.tree_leaves(batch)
    if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (num_records,) for leaf in leaves):
        return False
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        both, first, second = (float(loss_of(_rows(batch, rows))) for rows in ([0, -1], [0], [-1]))
    if not math.isfinite(first) or not math.isfinite(second):
        return False
    expected = (first + second) / (2 if loss_reduction == "mean" else 1)
    if not abs(both - expected) <= ABSOLUTE + RELATIVE * (abs(first) + abs(second)):
        raise NotPrivate(
            layer="the loss",
            reason=f"that of two records is not the {loss_reduction} of their losses alone",
            instead="a loss with the same share for every record, or another loss_reduction",
        )
    return True


def _rows(batch: Any, rows: list[int]) -> Any:
    return pytree.tree_map_only(Tensor, lambda leaf: leaf[rows], batch)
