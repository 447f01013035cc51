from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import KEPT_BYTES, Outer, outer
from lehr.gradients.precision import ROUNDING_OF_SUMS, margin
from lehr.gradients.products import weigh
from tests.gradients.contributions.parts import assert_consistent, drawn

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@settings(max_examples=20)
@given(records=st.integers(0, 3), positions=st.integers(0, 6), outputs=st.integers(1, 20), inputs=st.integers(1, 20))
def test_any_shape_is_consistent(records: int, positions: int, outputs: int, inputs: int) -> None:
    part = Outer(drawn(records, positions, outputs), drawn(records, positions, inputs, seed=1))
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_those_of_the_tensors_as_they_are(dtype: torch.dtype) -> None:
    for positions in (1, 3, 40):
        part = Outer(drawn(2, positions, 16, dtype=dtype), drawn(2, positions, 16, dtype=dtype, seed=1))
        squares = part.materialised().double().flatten(1).square().sum(1)
        torch.testing.assert_close(part.squared_norms().double(), squares, rtol=1e-4, atol=0)


@pytest.mark.parametrize("positions", [2, 30, 300])
@pytest.mark.parametrize("spread", [1e-2, 1e-1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_summed_is_no_longer_than_its_norm_said(positions: int, spread: float, dtype: torch.dtype) -> None:
    """Scaling rounds half precision, in proportion to what cancels and not to what is left."""
    inputs = (drawn(16, 1, 128) + spread * drawn(16, positions, 128, seed=1)).to(dtype)
    output_grads = drawn(16, positions, 128, seed=2)
    part = Outer((output_grads - output_grads.mean(1, keepdim=True)).to(dtype), inputs)
    norms_B, weights_B = part.squared_norms().sqrt(), drawn(16, seed=3).abs().float()  # noqa: N806
    everyone = torch.ones(16, dtype=torch.bool)
    summed_B = torch.stack([part.weighted_sum(row, everyone).norm() for row in torch.diag(weights_B)])  # noqa: N806
    assert (summed_B <= norms_B * weights_B * (1 + margin(dtype) / 4)).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("repeats", [1, 8, 64, 512])
def test_a_record_that_is_made_to_round_one_way_is_still_no_longer_than_its_norm_said(
    repeats: int, device: str
) -> None:
    """Scaled by this weight, 49 and 44 are rounded up and -93 is too, while the three add up to nothing."""
    values = torch.tensor([49.0, 44, -93], dtype=torch.bfloat16, device=device).repeat(repeats)
    part = Outer(
        values.reshape(1, -1, 1).expand(1, -1, 32), torch.ones_like(values).reshape(1, -1, 1).expand(1, -1, 32)
    )
    weights_B, everyone = torch.tensor([0.7123], device=device), torch.ones(1, dtype=torch.bool, device=device)  # noqa: N806
    summed = part.weighted_sum(weights_B, everyone).norm()
    assert summed <= part.squared_norms().sqrt() * weights_B * (1 + margin(torch.bfloat16))


@pytest.mark.parametrize("positions", [2, 5, 30, 100])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 1.0])
def test_a_norm_is_never_reported_too_small_however_much_cancels(positions: int, spread: float) -> None:
    """Nearly equal inputs meet output gradients that add up to nothing, as before a normalisation."""
    inputs = drawn(16, 1, 256, dtype=torch.float32) + spread * drawn(16, positions, 256, dtype=torch.float32, seed=1)
    output_grads = drawn(16, positions, 256, dtype=torch.float32, seed=2)
    output_grads = output_grads - output_grads.mean(1, keepdim=True)
    true = Outer(output_grads.double(), inputs.double()).materialised().flatten(1).norm(dim=1)
    found = Outer(output_grads, inputs).squared_norms().double().sqrt()
    assert (found >= true * (1 - 1e-5)).all()


def test_where_nothing_cancels_the_norm_is_hardly_larger_than_it_is() -> None:
    output_grads, inputs = (drawn(8, 100, 512, dtype=torch.float32, seed=seed) for seed in (0, 1))
    true = Outer(output_grads.double(), inputs.double()).materialised().flatten(1).norm(dim=1)
    found = Outer(output_grads, inputs).squared_norms().double().sqrt()
    torch.testing.assert_close(found, true, rtol=5e-6, atol=0)


def test_a_small_gradient_is_kept_and_a_large_one_is_not() -> None:
    assert isinstance(outer(drawn(2, 9, 4), drawn(2, 9, 4, seed=1)), Materialised)
    assert isinstance(outer(drawn(2, 1, 4), drawn(2, 1, 4, seed=1)), Outer)  # one position: norms are products of norms
    assert isinstance(outer(drawn(2, 2, 64), drawn(2, 2, 64, seed=1)), Outer)  # few positions: products between them
    many = KEPT_BYTES // (4 * 2 * 3) + 1
    assert isinstance(outer(torch.empty(many, 6, 2), torch.empty(many, 6, 3)), Outer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_gradient_that_is_kept_has_the_norms_and_the_sum_of_one_that_is_not(dtype: torch.dtype) -> None:
    factors = drawn(3, 9, 4, dtype=dtype), drawn(3, 9, 5, dtype=dtype, seed=1)
    kept, plain = outer(*factors), Outer(*factors)
    torch.testing.assert_close(kept.squared_norms(), plain.squared_norms(), rtol=1e-4, atol=0)
    weights, counted = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([True, False, True])
    found, expected = (part.weighted_sum(weights.to(kept.materialised().dtype), counted) for part in (kept, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_positions_that_cancel_hardly_round_what_other_records_add() -> None:
    """Every second record has two long positions that cancel; the others, each of the clip norm 1, stand between."""
    made = torch.Generator().manual_seed(0)
    output_grads, inputs = torch.rand(64, 2, 3, generator=made), torch.rand(64, 2, 5, generator=made)
    output_grads[::2, 1] = -output_grads[::2, 0]
    inputs[::2, 1] = inputs[::2, 0] = 1e9 * inputs[::2, 0]
    part, everybody = Outer(output_grads, inputs), torch.ones(64, dtype=torch.bool)
    weights_B = 1 / part.squared_norms().sqrt().clamp_min(1)  # noqa: N806
    scaled = weigh(output_grads, weights_B, everybody).double()
    exact = torch.einsum("bto,bti->oi", scaled, inputs.double())
    assert float((part.weighted_sum(weights_B, everybody) - exact).norm()) <= ROUNDING_OF_SUMS / 4
