"""A model is tried on zeros, and on nothing else, before a run begins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.data import InMemory, Preparation
from lehr.data.augmentation import augmentation_by_name
from lehr.errors import InvalidValue
from lehr.training.engines import nobody, padding, try_model
from lehr.training.input_pipeline import InputPipeline
from lehr.training.records import RunRecords
from tests.training.tiny import PRIVATE, linear

CPU = torch.device("cpu")
GIVEN = RunRecords(
    name="tiny", private=InMemory(*PRIVATE), records=40, num_classes=3, preparation=Preparation(mean=(0.5,), std=(0.5,))
)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def look(views: int = 1) -> InputPipeline:
    return InputPipeline(
        preparation=GIVEN.preparation, augmentation=augmentation_by_name("none"), views=views, device=CPU
    )


def tried(model: nn.Module, *, loss_fn: Any = losses, is_scored: bool = True) -> None:
    try_model(model, loss_fn=loss_fn, pipeline=look(), given=GIVEN, is_scored=is_scored)


class Noting(nn.Module):
    """Notes what it is called with, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.seen: list[Tensor] = []
        self.modes: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs)
        self.modes.append(self.training)
        outputs: Tensor = self.inner(inputs)
        return outputs


class Dense(nn.Module):
    """An output for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv2d(1, 3, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs)
        return outputs


def test_nobody_has_the_shapes_of_the_records_and_nothing_of_them() -> None:
    made = nobody(GIVEN, 5, CPU)
    assert made.inputs.shape == (5, 1, 4, 4)
    assert (made.inputs.dtype, made.targets.dtype) == (torch.float32, torch.int64)
    assert not made.inputs.any()
    assert not made.targets.any()


def test_padding_counts_nobody() -> None:
    inputs, targets, mask = padding(GIVEN, look(views=2), 6)
    assert isinstance(inputs, Tensor)
    assert inputs.shape == (6, 2, 1, 4, 4)
    assert (len(targets), int(mask.sum())) == (6, 0)


def test_a_model_is_called_with_zeros_alone_and_left_as_it_was() -> None:
    model = Noting().train()
    tried(model)
    blank = (0 - 0.5) / 0.5
    assert model.seen
    assert all(bool((seen == blank).all()) for seen in model.seen)
    assert not any(model.modes)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    "model, says",
    [
        (linear(outputs=2), "model must be one with 3 outputs, one a class; given: 2"),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), r"model must be one that takes records of shape \(1, 4, 4\)"),
        (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (4, 4))), "loss_fn must be one for the outputs of the model"),
    ],
)
def test_a_model_that_does_not_fit_the_records_is_refused(model: nn.Module, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        tried(model)


def test_more_outputs_than_classes_are_allowed() -> None:
    tried(linear(outputs=7))


def test_a_model_that_cannot_be_scored_is_refused_only_where_it_is_to_be() -> None:
    def each_pixel(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.flatten(1).mean(1) * targets

    tried(Dense(), loss_fn=each_pixel, is_scored=False)
    with pytest.raises(InvalidValue, match="model must be one with an output for each class where it is scored"):
        tried(Dense(), loss_fn=each_pixel)


class Narrow(nn.Module):
    """Runs, and keeps its weights, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear().bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs.bfloat16())
        return outputs.float()


def test_weights_in_half_precision_are_warned_of_by_name() -> None:
    with pytest.warns(UserWarning, match=r"inner.* is in torch.bfloat16"):
        tried(Narrow())
    tried(Narrow().float().requires_grad_(False).bfloat16())
