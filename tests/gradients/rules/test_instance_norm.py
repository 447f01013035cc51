from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.interfaces import layer_rule
from tests.gradients.oracle import assert_agrees, batch

KINDS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("views", [1, 2])
def test_every_dimension_agrees_with_a_loop(dimensions: int, views: int) -> None:
    model = nn.Sequential(KINDS[dimensions](3, affine=True), nn.Tanh(), KINDS[dimensions](3))
    shape = (2, *((views,) if views > 1 else ()), 3, *(2, 3, 2)[:dimensions])
    assert_agrees(model.double(), *batch(*shape), views=views)


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_fixed_statistics_in_eval_mode_agree_with_a_loop(dimensions: int) -> None:
    layer = KINDS[dimensions](3, affine=True, track_running_stats=True).double()
    layer(batch(4, 3, *(2, 3, 2)[:dimensions], seed=5)[0])  # public records give it statistics
    assert_agrees(layer.eval(), *batch(2, 3, *(2, 3, 2)[:dimensions]))


def test_statistics_that_are_kept_in_training_are_refused_with_a_way_out() -> None:
    layer = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    rule = layer_rule(layer)
    assert rule is not None
    assert rule.refuses is not None
    assert "track_running_stats=False" in str(rule.refuses(layer))
    assert rule.refuses(layer.eval()) is None
    assert rule.refuses(nn.InstanceNorm2d(3, affine=True)) is None


def test_an_input_without_an_axis_for_records_is_refused_by_its_shape() -> None:
    layer = nn.InstanceNorm2d(2, affine=True)
    rule = layer_rule(layer)
    assert rule is not None
    assert rule.forward is not None
    with pytest.raises(InvalidValue, match=r"InstanceNorm2d.*4 axes"):
        rule.forward(layer, lambda site, inputs, output: output, torch.randn(2, 3, 3))


def test_channels_last_stays_channels_last() -> None:
    rule = layer_rule(nn.InstanceNorm2d(3, affine=True))
    assert rule is not None
    assert rule.forward is not None
    inputs = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    outputs = rule.forward(nn.InstanceNorm2d(3, affine=True), lambda site, inputs, output: output, inputs)
    assert outputs.is_contiguous(memory_format=torch.channels_last)
