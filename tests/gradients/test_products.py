from __future__ import annotations

import pytest
import torch

from lehr.gradients.products import (
    batched_product,
    keep,
    product,
    rounding_of,
    rounding_of_scaling,
    rows,
    sum_of_squares,
    weigh,
)

HALF = [torch.bfloat16, torch.float16]
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("dtype", HALF)
def test_products_of_half_precision_are_summed_in_float32(dtype: torch.dtype) -> None:
    """In bfloat16 and float16 themselves a sum of ones stands still long before 4096."""
    ones = torch.ones(1, 1, 4097, dtype=dtype)
    assert batched_product(ones, ones.transpose(1, 2)).item() == 4097
    assert product(ones[0], ones[0].T).item() == 4097
    assert sum_of_squares(ones).item() == 4097


def test_double_precision_is_kept() -> None:
    values = torch.ones(2, 3, 4, dtype=torch.float64)
    assert batched_product(values, values.transpose(1, 2)).dtype == torch.float64
    assert sum_of_squares(values).dtype == torch.float64


@pytest.mark.parametrize("shape", [(0, 3), (2,), (2, 0), (0,), (2, 3, 4)])
def test_there_is_one_row_for_each_record_whatever_it_holds(shape: tuple[int, ...]) -> None:
    assert rows(torch.ones(shape)).shape == (shape[0], torch.Size(shape[1:]).numel())
    assert sum_of_squares(torch.ones(shape)).shape == shape[:1]


def test_a_record_that_is_not_counted_is_exactly_zero_whatever_it_and_its_weight_are() -> None:
    values = torch.tensor([[1.0, 2.0], [torch.inf, torch.nan]])
    weights_B, counted_B = torch.tensor([0.5, torch.nan]), torch.tensor([True, False])  # noqa: N806
    assert weigh(values, weights_B, counted_B).tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert keep(values, counted_B).tolist() == [[1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("dtype", HALF)
def test_scaling_rounds_neither_the_weight_nor_what_is_scaled_to_half_precision(dtype: torch.dtype) -> None:
    weight = torch.tensor([1.0003])
    values = torch.tensor([[1.0078125 * 3]], dtype=dtype)
    found = weigh(values, weight, torch.tensor([True]))
    assert found.dtype == torch.float32
    assert found.item() == (values.float() * weight).item()


def test_weights_of_double_precision_do_not_widen_what_is_scaled() -> None:
    weights = torch.ones(2, dtype=torch.float64)
    assert weigh(torch.ones(2, 3), weights, weights > 0).dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("dtype", HALF)
def test_a_wider_left_factor_is_not_rounded_to_the_right_ones_type(dtype: torch.dtype, device: str) -> None:
    left = torch.full((16, 16), 1 / 3, device=device)
    right = torch.eye(16, dtype=dtype, device=device)
    assert ((product(left, right) - left).abs() <= 2**-16 * left).all()


def test_nothing_has_no_rounding() -> None:
    assert rounding_of(torch.zeros(1)).item() == 0
    assert rounding_of_scaling(torch.zeros(1), torch.bfloat16, positions=3).item() == 0


def test_rounding_is_a_small_part_of_what_does_not_cancel() -> None:
    ones = torch.ones(1)
    assert 0 < rounding_of(ones.double()) < rounding_of(ones) < 1e-5
    narrower, wider = (rounding_of_scaling(ones, dtype, positions=1000) for dtype in HALF)
    assert 0 < wider < narrower < 1e-4
