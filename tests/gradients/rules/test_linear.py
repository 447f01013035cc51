from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.gradients.oracle import assert_agrees, batch


class Flattening(nn.Module):
    """The positions of a record stand between those of others, as in many implementations of sequence models."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.flatten(0, 1))
        return outputs.reshape(*inputs.shape[:2], -1)


class PositionsFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs.transpose(0, 1))
        return outputs.transpose(0, 1)


@settings(max_examples=25)
@given(
    records=st.integers(1, 3),
    between=st.lists(st.integers(1, 4), max_size=2),
    inputs=st.integers(1, 24),
    outputs=st.integers(1, 24),
    bias=st.booleans(),
)
def test_any_shape_agrees_with_a_loop(records: int, between: list[int], inputs: int, outputs: int, bias: bool) -> None:
    assert_agrees(nn.Linear(inputs, outputs, bias=bias).double(), *batch(records, *between, inputs))


def test_a_sequence_without_positions_has_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Flatten(1), nn.ConstantPad1d((0, 3), 1.0)).double()
    assert_agrees(model, *batch(2, 0, 5))


def test_records_that_are_flattened_into_positions_are_told_apart() -> None:
    assert_agrees(Flattening().double(), *batch(3, 4, 5))


def test_positions_may_come_before_records() -> None:
    for positions in (1, 2, 3, 4):
        assert_agrees(PositionsFirst().double(), *batch(3, positions, 5))
        assert_agrees(PositionsFirst().double(), *batch(1, positions, 5))


def test_a_layer_used_twice_counts_the_product_between_its_uses() -> None:
    layer = nn.Linear(20, 20)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 20))
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 4, 20))


def test_two_layers_with_one_weight_count_the_product_between_them() -> None:
    one, other = nn.Linear(6, 6), nn.Linear(6, 6)
    other.weight = one.weight
    assert_agrees(nn.Sequential(one, nn.Tanh(), other).double(), *batch(3, 6))


def test_a_layer_that_is_never_called_has_no_gradient() -> None:
    class Unused(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.as_tensor(self[0](inputs))

    assert_agrees(Unused(nn.Linear(4, 3), nn.Linear(3, 2)).double(), *batch(3, 4))
