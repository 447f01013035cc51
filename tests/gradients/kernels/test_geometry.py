from __future__ import annotations

import pytest
from torch import nn

from tests.gradients.kernels.convolutions import Convolution


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layer, sizes", [(nn.Conv1d, (9,)), (nn.Conv2d, (9, 8)), (nn.Conv3d, (5, 4, 6))])
def test_the_shape_of_the_weight_is_that_of_the_layer(
    layer: type[nn.Conv2d], sizes: tuple[int, ...], groups: int
) -> None:
    shape = Convolution(channels=4, outputs=6, sizes=sizes, kernel=3, groups=groups)
    assert shape.geometry.weight_shape(*shape.batch()) == layer(4, 6, 3, groups=groups).weight.shape
