from __future__ import annotations

import pytest
import torch

from lehr.gradients.contributions.unused import Unused
from tests.gradients.contributions.parts import assert_consistent


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("records", [0, 3])
def test_zeros_of_the_right_shape_in_float32_or_better(dtype: torch.dtype, records: int) -> None:
    part = Unused(torch.Size([2, 4]), records, torch.ones(1, dtype=dtype))
    assert part.materialised().shape == (records, 2, 4)
    assert part.squared_norms().dtype == torch.promote_types(dtype, torch.float32)
    assert_consistent(part)
