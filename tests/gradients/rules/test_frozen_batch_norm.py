from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lehr.gradients.rules.frozen_batch_norm  # noqa: F401  (teaches the rule)
from lehr.gradients.conversion import frozen_statistics
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.one_by_one import OneByOneEngine
from lehr.interfaces import layer_rule
from tests.gradients.small_models import assert_same_gradients

LAYERS = {
    "BatchNorm1d": (nn.BatchNorm1d, (3,)),
    "BatchNorm1d on sequences": (nn.BatchNorm1d, (3, 4)),
    "BatchNorm2d": (nn.BatchNorm2d, (3, 4, 4)),
    "BatchNorm3d": (nn.BatchNorm3d, (3, 2, 2, 2)),
    "SyncBatchNorm": (nn.SyncBatchNorm, (3, 4, 4)),
}
every_layer = pytest.mark.parametrize("kind, shape", LAYERS.values(), ids=LAYERS.keys())


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.flatten(1).sum(1) - targets).square()


def evaluated(kind: Any) -> Any:
    """A layer with statistics, gain and shift that are not those of a new one."""
    layer = kind(3).double().eval()
    for values, mean in ((layer.running_mean, 0.0), (layer.weight, 1.0), (layer.bias, 0.0)):
        nn.init.normal_(values, mean)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


@every_layer
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("records", [1, 4])
@pytest.mark.parametrize("converted", [False, True])
def test_gain_and_shift_agree_with_the_oracle(
    kind: Any, shape: tuple[int, ...], views: int, records: int, converted: bool
) -> None:
    layer = frozen_statistics(evaluated(kind)) if converted else evaluated(kind)
    assert layer_rule(layer) is not None
    inputs = torch.randn(records, *((views,) if views > 1 else ()), *shape).double()
    targets = torch.randn(records).double()
    found = GhostEngine(layer, squares, views=views, compiled=False).gradients(inputs, targets)
    expected = OneByOneEngine(layer, squares, views=views).gradients(inputs, targets)
    assert_same_gradients(found, expected, records=records)


@every_layer
def test_the_forward_pass_is_that_of_the_layer(kind: Any, shape: tuple[int, ...]) -> None:
    layer = evaluated(kind)
    rule = layer_rule(layer)
    assert rule is not None
    assert rule.forward is not None
    inputs = torch.randn(4, *shape).double()
    assert torch.allclose(rule.forward(layer, lambda _, __, output: output, inputs), layer(inputs), rtol=1e-12)


def test_a_frozen_gain_leaves_the_shift_trained() -> None:
    layer = evaluated(nn.BatchNorm2d)
    layer.weight.requires_grad_(False)
    inputs, targets = torch.randn(3, 3, 2, 2).double(), torch.randn(3).double()
    found = GhostEngine(layer, squares, compiled=False).gradients(inputs, targets)
    assert_same_gradients(found, OneByOneEngine(layer, squares).gradients(inputs, targets), records=3)
    assert found.names == ("bias",)


def test_the_memory_format_is_kept() -> None:
    rule = layer_rule(nn.BatchNorm2d(8).eval())
    assert rule is not None
    assert rule.forward is not None
    images = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    outputs = rule.forward(nn.BatchNorm2d(8).eval(), lambda _, __, output: output, images)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
