"""Margins, and arithmetic whose sums are never narrower than float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lehr.gradients.convolutions import Convolved, Geometry
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.precision import (
    MARGINS,
    PRECISIONS,
    ROUNDING_OF_SUMS,
    TF32_MARGIN,
    batched_product,
    everybody_counts,
    keep,
    margin,
    product,
    rounding_of,
    rounding_of_scaling,
    rounding_of_sum,
    squares_at_most,
    sum_of_squares,
    uncast,
    weigh,
)
from lehr.interfaces import RecordGradients
from lehr.networks.small import cifar_cnn, paper_cnn
from tests.gradients.small_models import CASES, Case, loss_fn

WEIGHTS = (1.0, 0.7123, 0.0137, 1.234e-4)
NETWORKS = {**CASES, "paper CNN": Case(paper_cnn, (1, 28, 28)), "CIFAR CNN": Case(cifar_cnn, (3, 32, 32))}
ROUNDED = [("as_model", torch.float64), ("as_model", torch.float32), ("bfloat16", torch.float32)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def length(sums: dict[str, Tensor]) -> float:
    return float(torch.stack([value.double().square().sum() for value in sums.values()]).sum().sqrt())


def excesses(gradients: RecordGradients) -> Iterator[float]:
    """How much longer each record is in a sum of its own than its norm said, relative to that, by weight."""
    norms_B = gradients.norms().double()
    for index in range(norms_B.shape[0]):
        for weight in WEIGHTS:
            weights_B = torch.zeros(norms_B.shape[0], device=norms_B.device)
            weights_B[index] = weight
            yield length(gradients.weighted_sum(weights_B)) / float(weights_B[index] * norms_B[index]) - 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision, dtype", ROUNDED)
@pytest.mark.parametrize("case", NETWORKS.values(), ids=NETWORKS.keys())
def test_what_is_summed_exceeds_its_norm_by_less_than_a_quarter_of_the_margin(
    case: Case, precision: str, dtype: torch.dtype, device: str
) -> None:
    for seed in range(3 if case in CASES.values() else 1):
        torch.manual_seed(seed)
        model = case.build().to(device, dtype)
        inputs, targets = case.batch(3 + seed, dtype=dtype)
        engine = GhostEngine(model, loss_fn, precision=precision, compiled=False)
        gradients = engine.gradients(inputs.to(device), targets.to(device))
        of_norms = gradients.margin - (0 if dtype is torch.float64 else ROUNDING_OF_SUMS)
        assert max(excesses(gradients)) <= of_norms / 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("groups", [1, 2])
def test_images_that_are_made_to_round_one_way_are_no_longer_than_their_norm_said(groups: int, device: str) -> None:
    """Scaled by this weight and rounded to bfloat16, 49 and 44 grow and -93 does too; the three add up to nothing."""
    values = torch.tensor([49.0, 44, -93], dtype=torch.bfloat16, device=device).repeat(4)
    output_grads = values.reshape(1, 1, 3, 4).expand(1, 64, 3, 4).contiguous()
    part = Convolved(torch.ones_like(output_grads), output_grads, Geometry((1, 1), (1, 1), (0, 0), (1, 1), groups), 1)
    weights_B = torch.tensor([0.7123], device=device)
    summed = part.weighted_sum(weights_B, torch.ones(1, dtype=torch.bool, device=device)).norm()
    assert summed <= part.squared_norms().sqrt() * weights_B * (1 + MARGINS[torch.bfloat16])


def test_every_precision_has_a_margin_that_is_small_and_grows_with_its_rounding() -> None:
    assert {dtype for dtype in PRECISIONS.values() if dtype is not None} <= set(MARGINS)
    assert all(torch.finfo(dtype).eps < allowed < 0.02 for dtype, allowed in MARGINS.items())
    assert MARGINS[torch.float64] < MARGINS[torch.float32] < TF32_MARGIN < MARGINS[torch.bfloat16]


def test_float32_on_a_gpu_has_the_margin_of_tf32_and_nothing_else_has() -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert margin(torch.float32, cuda) - ROUNDING_OF_SUMS == TF32_MARGIN >= 4 * 2**-9
    assert margin(torch.float32, cpu) == margin(torch.float32) == MARGINS[torch.float32] + ROUNDING_OF_SUMS
    assert margin(torch.float64, cuda) == MARGINS[torch.float64]
    assert margin(torch.bfloat16, cuda) == MARGINS[torch.bfloat16] + ROUNDING_OF_SUMS


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
    assert squares_at_most(ones[0], [1]).item() == 4097


def test_a_record_that_is_not_counted_is_exactly_zero_whatever_it_and_its_weight_are() -> None:
    values = torch.tensor([[1.0, 2.0], [torch.inf, torch.nan]])
    weights_B, counted_B = torch.tensor([0.5, torch.nan]), torch.tensor([True, False])
    assert weigh(values, weights_B, counted_B).tolist() == [[0.5, 1.0], [0.0, 0.0]]
    assert keep(values, counted_B).tolist() == [[1.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("dtype", HALF)
def test_scaling_rounds_neither_the_weight_nor_what_is_scaled_to_half_precision(dtype: torch.dtype) -> None:
    weight = torch.tensor([1.0003])
    values = torch.tensor([[1.0078125 * 3]], dtype=dtype)
    found = weigh(values, weight, torch.tensor([True]))
    assert found.dtype == torch.float32
    assert found.item() == (values.float() * weight).item()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("dtype", HALF)
def test_a_wider_left_factor_is_not_rounded_to_the_right_ones_type(dtype: torch.dtype, device: str) -> None:
    left = torch.full((16, 16), 1 / 3, device=device)
    right = torch.eye(16, dtype=dtype, device=device)
    assert ((product(left, right) - left).abs() <= 2**-16 * left).all()


@pytest.mark.parametrize("weight", [0.1, 1 / 3, 0.7, 98765.4321])
def test_positions_that_cancel_are_summed_to_less_than_is_said_after_they_are_scaled(weight: float) -> None:
    grads = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    positions = torch.cat([grads, -grads / 3, -(grads - grads / 3)])
    summed = (positions * weight).sum(0).norm() / weight
    said = rounding_of_sum(positions.norm(dim=1).sum(), torch.float32, CPU).sqrt()
    assert 0 < summed <= said


@pytest.mark.parametrize("size", [1e-20, 3e-23, 1e-30, 1e-45])
def test_squares_that_underflow_are_not_reported_too_small(size: float) -> None:
    values = torch.full((1, 50, 4), size)
    exact = values.double().square().sum((1, 2))
    assert squares_at_most(values, [1, 2]).double() >= exact
    assert squares_at_most(values[:, :, 0], [1]).double() >= exact / 4


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


def test_how_much_rounding_is_allowed_for() -> None:
    """Half precision is summed in float32, where it is exact in TF32 too; float64 is never rounded to TF32."""
    ones = torch.ones(1)
    assert 0 < rounding_of(ones.double()) < rounding_of(ones) < 1e-5
    narrower, wider = (rounding_of_scaling(ones, dtype, positions=1000) for dtype in HALF)
    assert 0 < wider < narrower < 1e-4
    assert {rounding_of_sum(ones, dtype, CPU).item() for dtype in [*HALF, torch.float32]} == {2**-38}
    assert rounding_of_sum(ones.double(), torch.float64, CPU).item() == 2**-102
    assert rounding_of_sum(ones, torch.float32, GPU).item() == 2**-18
    assert rounding_of_sum(ones, torch.float32, CPU, terms=16) == rounding_of_sum(ones, torch.float32, CPU)
    assert rounding_of_sum(ones, torch.float32, CPU, terms=1024).item() == 2**-26
    for dtype in (*HALF, torch.float64):
        assert rounding_of_sum(ones, dtype, GPU) == rounding_of_sum(ones, dtype, CPU)
