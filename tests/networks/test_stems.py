"""How a residual network begins."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.stems import stem_layers


def convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2)


begun = partial(stem_layers, in_channels=3, out_channels=4, convolution=convolution, activated=(nn.ReLU(),))


@pytest.mark.parametrize("stem, side, kinds", [("imagenet", 8, 3), ("small", 32, 2)])
def test_a_stem_leaves_so_many_pixels(stem: str, side: int, kinds: int) -> None:
    layers = begun(stem)
    assert nn.Sequential(*layers)(torch.zeros(2, 3, 32, 32)).shape == (2, 4, side, side)
    assert [type(layer) for layer in layers] == [nn.Conv2d, nn.ReLU, nn.MaxPool2d][:kinds]


@pytest.mark.parametrize("stem", ["large", None])
def test_another_stem_is_refused_by_name(stem: Any) -> None:
    with pytest.raises(InvalidValue, match="stem must be one of"):
        begun(stem)
