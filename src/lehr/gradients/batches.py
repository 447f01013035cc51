"""Batches and the checks of what engines are given: records, views, masks, losses, groups of parameters, weights.

A batch is one tensor, or a tuple or dictionary of tensors, each beginning with the record axis. Every parameter is in
exactly one group and has exactly one weight: one that no group names would be left out of a norm or have no bound.

Axes: B records, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import InvalidValue
from lehr.interfaces import Groups, Inputs, ViewTargets, moved

LossFn: TypeAlias = Callable[[Any, Any], Tensor]
TRAINED_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def leaves(values: Any) -> list[Tensor]:
    """The tensors in it, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def each(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """The same structure, with the function applied to every tensor."""
    return pytree.tree_map_only(Tensor, function, values)


def take(values: Any, rows: int | slice | list[int]) -> Any:
    """These rows of every tensor."""
    return each(lambda leaf: leaf[rows], values)


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """A tuple is passed as arguments, a dictionary as keywords."""
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def num_records(inputs: Inputs, targets: Any) -> int:
    """The length of the record axis, which must be the same everywhere."""
    lengths = {tuple(leaf.shape[:1]) for leaf in [*leaves(inputs), *leaves(targets)]}
    if len(lengths) != 1 or () in lengths:
        shapes = [tuple(leaf.shape) for leaf in [*leaves(inputs), *leaves(targets)]]
        raise InvalidValue("batch", allowed="tensors that begin with the same number of records", given=shapes)
    return next(iter(lengths))[0]


def one_each(losses: object, *, num_records: int) -> Tensor:
    """The losses themselves: one for each record, or for each view where these are run apart."""
    if not isinstance(losses, Tensor) or losses.shape != (num_records,):
        allowed = f"a function with one loss per record, of shape {(num_records,)} (reduction='none')"
        given = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidValue("loss_fn", allowed=allowed, given=given)
    return losses


def weighted(loss_fn: LossFn) -> LossFn:
    """The same loss for ``ViewTargets``: that of each view, times its weight."""

    def loss(outputs: Any, given: ViewTargets) -> Tensor:
        # Checked here, because a weight would make one loss for all of them look like one for each.
        return one_each(loss_fn(outputs, given.targets), num_records=len(given.weights_BK)) * given.weights_BK

    return loss


def flat_views(inputs: Inputs, *, views: int) -> Inputs:
    """The views of all records one after another on the first axis."""
    flat: Inputs = each(lambda leaf: leaf.flatten(0, 1), inputs) if views > 1 else inputs
    return flat


def view_targets(targets: Any, *, views: int) -> Any:
    """The target of every view, after the record axis: the record's own, unless each view has another."""
    if not isinstance(targets, ViewTargets):
        return each(lambda leaf: leaf.unsqueeze(1).expand(-1, views, *leaf.shape[1:]), targets)
    times = views // targets.weights_BK.shape[1]
    return each(lambda leaf: leaf.repeat_interleave(times, 1), targets) if times > 1 else targets


def repeat_targets(targets: Any, *, views: int) -> Any:
    """The targets of the views of all records one after another on the first axis."""
    if isinstance(targets, ViewTargets):
        return each(lambda leaf: leaf.flatten(0, 1), view_targets(targets, views=views))
    return each(lambda leaf: leaf.repeat_interleave(views, 0), targets) if views > 1 else targets


def channels_last(values: Tensor) -> Tensor:
    """Images with their channels innermost, which is how convolutions and the kernels here read them fastest."""
    return values.contiguous(memory_format=torch.channels_last) if values.dim() == 4 else values


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that will be trained, each once, however often it is shared."""
    found = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not found:
        raise InvalidValue("model", allowed="a model with at least one parameter that requires grad", given="none")
    for name, parameter in found.items():
        if parameter.dtype not in TRAINED_TYPES:
            allowed = f"one whose trained parameters are of {', '.join(map(str, TRAINED_TYPES))}"
            raise InvalidValue("model", allowed=allowed, given=f"{name}: {parameter.dtype}")
    return found


def buffers_put_back(model: nn.Module) -> Callable[[], None]:
    """Call what this returns, and all that was written into buffers since, or put in their place, is gone."""
    held = [
        (layer, name, value, value.clone())
        for layer in model.modules()
        for name, value in layer._buffers.items()
        if value is not None
    ]

    @torch.no_grad()
    def put_back() -> None:
        for layer, name, value, before in held:
            if not torch.equal(value, before):  # otherwise it is left alone, since autograd may have saved it
                value.copy_(before)
            layer._buffers[name] = value

    return put_back


def check_mask(mask_B: Tensor | None, *, num_records: int, device: torch.device) -> Tensor:
    """The mask itself, on the device; with none, every record counts."""
    if mask_B is None:
        return torch.ones(num_records, dtype=torch.bool, device=device)
    found: object = mask_B
    if not isinstance(found, Tensor) or found.dtype is not torch.bool or found.shape != (num_records,):
        given = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InvalidValue("mask_B", allowed=f"torch.bool ({num_records},), one for each record", given=given)
    return moved(mask_B, device)


def check_batch(inputs: Inputs, targets: Any, mask_B: Tensor | None, *, views: int, device: torch.device) -> Tensor:
    """Refuse a batch that does not fit together; its mask."""
    records = num_records(inputs, targets)
    for leaf in leaves(inputs):
        if views > 1 and (leaf.dim() < 2 or leaf.shape[1] != views):
            allowed = f"tensors whose second axis has the {views} views of a record"
            raise InvalidValue("inputs", allowed=allowed, given=tuple(leaf.shape))
    if isinstance(targets, ViewTargets):
        for leaf in leaves(targets):
            if leaf.dim() < 2 or not leaf.shape[1] or views % leaf.shape[1]:
                allowed = f"tensors whose second axis has a divisor of the {views} views of a record"
                raise InvalidValue("targets", allowed=allowed, given=tuple(leaf.shape))
    return check_mask(mask_B, num_records=records, device=device)


def check_groups(groups: Groups | None, *, names: Sequence[str]) -> Groups:
    """The groups themselves; with none, one that has every parameter."""
    if groups is None:
        return [names]
    named = [name for group in groups for name in group]
    if sorted(named) != sorted(names):
        raise InvalidValue("groups", allowed=f"such that each of {list(names)} is named once", given=groups)
    return groups


def weight_of_each(
    weights: Tensor, groups: Groups | None, *, names: Sequence[str], num_records: int, scale: float = 1.0
) -> dict[str, Tensor]:
    """The weights of all records, ``weights_B``, for every parameter, each times the scale."""
    whole = check_groups(groups, names=names)
    shape = (num_records,) if groups is None else (num_records, len(whole))
    given: object = weights
    if not isinstance(given, Tensor) or given.shape != shape:
        allowed = f"a tensor of shape {shape}, one for each record" + ("" if groups is None else " and group")
        raise InvalidValue("weights", allowed=allowed, given=tuple(given.shape) if isinstance(given, Tensor) else given)
    weights_BG = weights.reshape(num_records, len(whole)) * scale
    return {name: own for own, group in zip(weights_BG.unbind(1), whole, strict=True) for name in group}
