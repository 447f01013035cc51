from __future__ import annotations

import pytest
import torch

from lehr.gradients.contributions.materialised import Materialised
from tests.gradients.contributions.parts import assert_consistent, drawn


@pytest.mark.parametrize("shape", [(0, 3), (1, 2, 3), (4,), (4, 0), (5, 2)])
def test_any_shape_is_consistent(shape: tuple[int, ...]) -> None:
    assert_consistent(Materialised(drawn(*shape)))


def test_sums_of_bfloat16_gradients_are_kept_in_float32() -> None:
    part = Materialised(torch.ones(1000, 2, dtype=torch.bfloat16))
    assert part.weighted_sum(torch.ones(1000), torch.ones(1000, dtype=torch.bool)).tolist() == [1000.0, 1000.0]


def test_a_record_that_is_not_counted_adds_nothing_whatever_its_weight() -> None:
    part = Materialised(torch.tensor([[1.0], [torch.nan]]))
    weights_B, counted_B = torch.tensor([2.0, torch.inf]), torch.tensor([True, False])  # noqa: N806
    assert part.weighted_sum(weights_B, counted_B).tolist() == [2.0]
