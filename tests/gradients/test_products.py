from __future__ import annotations

import pytest
import torch

from lehr.gradients.products import (
    batched_product,
    everybody_counts,
    keep,
    product,
    rounding_of,
    rounding_of_scaling,
    rounding_of_sum,
    rows,
    squares_at_most,
    sum_of_squares,
    uncast,
    weigh,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
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


def test_what_a_sum_of_scaled_positions_may_be_off_by_is_a_rounding_of_each_length() -> None:
    lengths = torch.tensor([0.0, 1.0, 10.0])
    found = rounding_of_sum(lengths, torch.float32, CPU).sqrt() / 2**-20
    torch.testing.assert_close(found, 2 * lengths)


@pytest.mark.parametrize("weight", [0.1, 1 / 3, 0.7, 98765.4321])
def test_positions_that_cancel_are_summed_to_less_than_is_said_after_they_are_scaled(weight: float) -> None:
    grads = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.cat([grads, -grads / 3, -(grads - grads / 3)])
    summed = (positions * weight).sum(0).norm() / weight
    said = rounding_of_sum(positions.norm(dim=1).sum(), torch.float32, CPU).sqrt()
    assert 0 < summed <= said


def test_what_half_precision_is_summed_in_decides_and_not_half_precision() -> None:
    ones = torch.ones(1)
    assert {rounding_of_sum(ones, dtype, CPU).item() for dtype in [*HALF, torch.float32]} == {2**-38}
    assert rounding_of_sum(ones.double(), torch.float64, CPU).item() == 2**-102


def test_on_a_gpu_a_float32_product_may_be_rounded_to_the_ten_bits_of_tf32() -> None:
    """Half precision is exact in TF32, and float64 is never rounded to it."""
    ones = torch.ones(1)
    assert rounding_of_sum(ones, torch.float32, GPU).item() == 2**-18
    for dtype in (*HALF, torch.float64):
        assert rounding_of_sum(ones, dtype, GPU) == rounding_of_sum(ones, dtype, CPU)


def test_squares_are_added_up_along_the_named_axes_only() -> None:
    values = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4)
    torch.testing.assert_close(squares_at_most(values, [2]), values.square().sum(2))
    torch.testing.assert_close(squares_at_most(values, [1, 2]), values.square().sum((1, 2)))


@pytest.mark.parametrize("size", [1e-20, 3e-23, 1e-30, 1e-45])
def test_squares_that_underflow_are_not_reported_too_small(size: float) -> None:
    values = torch.full((1, 50, 4), size)
    exact = values.double().square().sum((1, 2))
    assert squares_at_most(values, [1, 2]).double() >= exact
    assert squares_at_most(values[:, :, 0], [1]).double() >= exact / 4


@pytest.mark.parametrize("dtype", HALF)
def test_squares_of_half_precision_are_added_up_in_float32(dtype: torch.dtype) -> None:
    assert squares_at_most(torch.ones(1, 4097, dtype=dtype), [1]).tolist() == [4097.0]


def test_a_caller_that_has_autocast_on_does_not_narrow_a_product() -> None:
    values = torch.full((1, 4, 4), 1 / 3)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = torch.bmm(values, values)
        with uncast(CPU):
            wide = batched_product(values, values)
    assert narrow.dtype is torch.bfloat16
    assert torch.equal(wide, torch.bmm(values, values))


@pytest.mark.parametrize("shape", [(2, 1024), (2, 1025), (2, 2**20), (2, 2**10, 2**10)])
@pytest.mark.parametrize("number", [0.1, 0.3, 1.1])
def test_many_equal_numbers_are_added_up_without_a_drift(shape: tuple[int, ...], number: float) -> None:
    """Added one after the other, a million of them are off by a thousandth, and the norm would be too small."""
    values = torch.full(shape, number)
    expected = values.double().flatten(1).square().sum(1)
    torch.testing.assert_close(sum_of_squares(values).double(), expected, rtol=5e-6, atol=0)
    if len(shape) == 2:
        torch.testing.assert_close(squares_at_most(values, [1]).double(), expected, rtol=5e-6, atol=0)


def test_leaving_nobody_out_gives_the_same_bits() -> None:
    values, weights = torch.randn(3, 4, 5), torch.rand(3)
    everyone, some = torch.tensor([True, True, True]), torch.tensor([True, False, True])
    assert everybody_counts(everyone)
    assert not everybody_counts(some)
    for among in (0, 2):
        assert torch.equal(weigh(values, weights, everyone)[among], weigh(values, weights, some)[among])
        assert torch.equal(keep(values, everyone)[among], keep(values, some)[among])
