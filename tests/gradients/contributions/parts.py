"""What every contribution must keep, and drawn tensors to build them from."""

from __future__ import annotations

import torch
from torch import Tensor

from lehr.interfaces import Contribution


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_consistent(part: Contribution, *, tolerance: float = 1e-10) -> None:
    """Norms and sums are those of the gradients that ``materialised`` gives; what is not counted adds nothing."""
    grads = part.materialised().double()
    records = grads.shape[0]
    squares_B = grads.reshape(records, grads.shape[1:].numel()).square().sum(1)  # noqa: N806
    torch.testing.assert_close(part.squared_norms().double(), squares_B, rtol=2 * tolerance, atol=tolerance)
    weights_B, counted_B = drawn(records, seed=9), torch.arange(records) % 3 != 1  # noqa: N806
    expected = torch.tensordot(weights_B * counted_B, grads, dims=1)
    found = part.weighted_sum(weights_B.to(part.squared_norms().dtype), counted_B)
    assert found.dtype == part.squared_norms().dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
