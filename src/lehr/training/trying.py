"""What can be found out about a model before anything is spent: it is tried on records that are made of zeros."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lehr.asking import losses_of_each
from lehr.data import InMemory
from lehr.errors import InvalidValue, LehrError
from lehr.gradients.batches import LossFn, call, each
from lehr.interfaces import Inputs
from lehr.scoring import PublicScore
from lehr.trainee import evaluating
from lehr.training.given_records import GivenRecords
from lehr.training.looks import Look


def nobody(given: GivenRecords, size: int, device: torch.device) -> InMemory:
    """Records of the same shapes and types, with nothing of any record in them."""
    inputs, targets = (torch.zeros((size, *like.shape[1:]), dtype=like.dtype, device=device) for like in given.like)
    return InMemory(inputs, targets)


def padding(given: GivenRecords, look: Look, size: int) -> tuple[Inputs, Any, Tensor]:
    """A physical batch in which nobody is."""
    records = nobody(given, size, look.device)
    views = look.trained(each(torch.zeros_like, records.inputs), torch.Generator(look.device))
    return views, records.targets, torch.zeros(size, dtype=torch.bool)


def try_model(
    model: nn.Module, *, loss_fn: LossFn, look: Look, given: GivenRecords, is_scored: bool, is_asked: bool = False
) -> None:
    """Refuse a model that does not take the records, has too few outputs, or cannot be scored where it is to be."""
    _warn_of_idle_dropout(model)
    _warn_of_narrow_weights(model)
    records = nobody(given, 2, look.device)
    with evaluating(model), torch.no_grad():
        shape = tuple(records.inputs.shape[1:])
        with _blaming("model", allowed=f"one that takes records of shape {shape}"):
            outputs = call(model, look.seen(records.inputs))
        _refuse_too_few_outputs(outputs, records.targets, num_classes=given.num_classes)
        with _blaming("loss_fn", allowed="one for the outputs of the model and the targets"):
            loss_fn(outputs, records.targets)
        if is_asked:
            weights = {name: value.detach() for name, value in model.named_parameters()}
            with _blaming("model", allowed="one whose losses can be computed record by record"):
                losses_of_each(model, weights, loss_fn, look.seen(records.inputs), records.targets)
        if is_scored:
            PublicScore(records=records, loss_fn=loss_fn, prepare=look.seen).score(model)


def _warn_of_idle_dropout(model: nn.Module) -> None:
    idle = [name for name, layer in model.named_modules() if _is_dropout(layer) and not layer.training]
    if idle:
        warnings.warn(f"{idle[0]} drops nothing, for it is in evaluation mode: call model.train() first", stacklevel=2)


def _warn_of_narrow_weights(model: nn.Module) -> None:
    trained = ((name, value) for name, value in model.named_parameters() if value.requires_grad)
    narrow = [(name, value.dtype) for name, value in trained if value.dtype in (torch.bfloat16, torch.float16)]
    if narrow:
        name, dtype = narrow[0]
        lost = f"{name} is in {dtype}, which rounds steps below {torch.finfo(dtype).eps / 4:.1g} of a weight to nothing"
        warnings.warn(f'{lost}: train model.float(), with precision="bfloat16" to be as fast', stacklevel=2)


def _is_dropout(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0


@contextmanager
def _blaming(name: str, *, allowed: str) -> Iterator[None]:
    try:
        yield
    except LehrError:
        raise
    except Exception as error:  # models and losses are the user's own code
        why = str(error).strip().splitlines() or [type(error).__name__]
        raise InvalidValue(name, allowed=allowed, given=why[0]) from error


def _refuse_too_few_outputs(outputs: Any, targets: Tensor, *, num_classes: int) -> None:
    """A label without an output would stop the run at the first record that has it."""
    if isinstance(outputs, Tensor) and outputs.ndim == 2 and targets.ndim == 1 and outputs.shape[1] < num_classes:
        raise InvalidValue("model", allowed=f"one with {num_classes} outputs, one a class", given=outputs.shape[1])
