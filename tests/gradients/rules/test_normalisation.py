from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.gradients.rules.normalisation import affine, standardised


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_standardised_is_what_torch_computes(dtype: torch.dtype) -> None:
    values = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.nn.functional.layer_norm(values.double(), (5,), eps=1e-5)
    found = standardised(values, [2], eps=1e-5)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_the_memory_format_of_the_input_is_kept() -> None:
    values = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert standardised(values, [2, 3], eps=1e-5).is_contiguous(memory_format=torch.channels_last)


def test_an_empty_batch_stays_empty_without_a_warning() -> None:
    assert standardised(torch.empty(0, 4, 5), [2], eps=1e-5).shape == (0, 4, 5)


def test_what_has_neither_gain_nor_shift_is_not_listened_to() -> None:
    def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
        raise AssertionError(site)

    values = torch.ones(2, 3)
    assert affine(tap, values, gain=None, shift=None, dtype=torch.bfloat16).dtype == torch.bfloat16
