"""What a batch looks like: one tensor, or a tuple or dictionary of tensors, each beginning with the record axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import InvalidValue
from lehr.interfaces import Inputs

LossFn: TypeAlias = Callable[[Any, Any], Tensor]
TRAINED_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def leaves(values: Any) -> list[Tensor]:
    """The tensors in it, in a fixed order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def each(function: Callable[[Tensor], Tensor], values: Any) -> Any:
    """The same structure, with the function applied to every tensor."""
    return pytree.tree_map_only(Tensor, function, values)


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
        raise InvalidValue("loss_fn", allowed=allowed, given=_shape(losses))
    return losses


def _shape(value: object) -> object:
    return tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__


def check_views(inputs: Inputs, *, views: int) -> None:
    """With views, every input has them behind the record axis."""
    for leaf in leaves(inputs):
        if views > 1 and (leaf.dim() < 2 or leaf.shape[1] != views):
            allowed = f"tensors whose second axis has the {views} views of a record"
            raise InvalidValue("inputs", allowed=allowed, given=tuple(leaf.shape))


def flat_views(inputs: Inputs, *, views: int) -> Inputs:
    """The views of all records one after another on the first axis."""
    flat: Inputs = each(lambda leaf: leaf.flatten(0, 1), inputs) if views > 1 else inputs
    return flat


@contextmanager
def random_numbers_apart(device: torch.device) -> Iterator[None]:
    """Draw what is drawn inside from torch's generators without leaving a trace in them."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


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


@torch.no_grad()
def write_back(kept: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Give every tensor its earlier values; one that still has them is left alone, since autograd may have saved it."""
    for tensor, before in kept:
        if not torch.equal(tensor, before):
            tensor.copy_(before)


def buffers_put_back(model: nn.Module) -> Callable[[], None]:
    """Call what this returns, and all that was written into buffers since, or put in their place, is gone."""
    held = [
        (layer, name, value, value.clone())
        for layer in model.modules()
        for name, value in layer._buffers.items()
        if value is not None
    ]

    def put_back() -> None:
        for layer, name, value, before in held:
            write_back([(value, before)])
            layer._buffers[name] = value

    return put_back
