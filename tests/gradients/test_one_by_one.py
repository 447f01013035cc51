from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.one_by_one import OneByOneEngine


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square() / 2


@pytest.fixture
def line() -> nn.Linear:
    """``y = 2 x``, so that a record's gradient is ``(2 x - target) x``."""
    layer = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(layer.weight, 2.0)
    return layer


def test_gradients_that_are_known_by_hand(line: nn.Linear) -> None:
    inputs, targets = torch.tensor([[1.0], [3.0]]).double(), torch.tensor([1.0, 8.0]).double()
    gradients = OneByOneEngine(line, squares).gradients(inputs, targets)
    assert gradients.names == ("weight",)
    assert gradients.norms().tolist() == [1.0, 6.0]
    assert gradients.weighted_sum(torch.tensor([2.0, 0.5]))["weight"].item() == 2 * 1 - 0.5 * 6


def test_views_are_averaged_before_the_norm_is_taken(line: nn.Linear) -> None:
    inputs, targets = torch.tensor([[[1.0], [-1.0]], [[1.0], [3.0]]]).double(), torch.tensor([1.0, 8.0]).double()
    gradients = OneByOneEngine(line, squares, views=2).gradients(inputs, targets)
    assert gradients.norms().tolist() == [(1 + 3) / 2, (6 + 6) / 2]
    assert gradients.weighted_sum(torch.ones(2))["weight"].item() == 2 - 6


def test_a_record_that_does_not_count_adds_nothing_even_where_the_clip_makes_something_of_zero(line: nn.Linear) -> None:
    batch = torch.ones(2, 1).double(), torch.ones(2), torch.tensor([True, False])
    gradients = OneByOneEngine(line, squares).gradients(*batch)
    assert gradients.clipped_sum(lambda grads: {"weight": grads["weight"] + 1})["weight"].item() == 1 + 1
