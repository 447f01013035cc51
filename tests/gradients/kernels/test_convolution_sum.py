from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.gradients.kernels import convolution_sum
from tests.gradients.kernels.convolutions import SHAPES, Convolution, every_shape

IMAGE = Convolution(channels=3, outputs=5, sizes=(7, 6), kernel=3, padding=1, views=2)


def summed(shape: Convolution, inputs: Tensor, output_grads: Tensor, weights_B: Tensor, counted_B: Tensor) -> Tensor:  # noqa: N803
    weights_N, counted_N = (values.repeat_interleave(shape.views) for values in (weights_B, counted_B))  # noqa: N806
    return convolution_sum.weighted_sum(inputs, output_grads, shape.geometry, weights_N=weights_N, counted_N=counted_N)


@every_shape
def test_the_sum_is_that_of_a_loop(shape: Convolution) -> None:
    batch = shape.batch()
    weights_B = torch.linspace(0, 1.5, shape.records, dtype=torch.float64)  # noqa: N806
    expected = torch.tensordot(weights_B, shape.grads_by_loop(*batch), dims=1)
    found = summed(shape, *batch, weights_B, weights_B >= 0)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * max(1, float(expected.abs().max())))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_record_that_is_not_counted_adds_exactly_nothing_whatever_it_holds(bad: float) -> None:
    inputs, output_grads = IMAGE.batch()
    counted_B = torch.tensor([True, False, True])  # noqa: N806
    weights_B = torch.tensor([0.5, bad, 1.0], dtype=torch.float64)  # noqa: N806
    spoiled, spoiled_grads = inputs.clone(), output_grads.clone()
    spoiled[2:4], spoiled_grads[2:4] = bad, bad
    zeros, zero_grads = inputs.clone(), output_grads.clone()
    zeros[2:4], zero_grads[2:4] = 0, 0
    found = summed(IMAGE, spoiled, spoiled_grads, weights_B, counted_B)
    expected = summed(IMAGE, zeros, zero_grads, torch.tensor([0.5, 1.0, 1.0], dtype=torch.float64), counted_B)
    assert torch.equal(found, expected)


def test_nobody_counted_gives_exact_zeros() -> None:
    found = summed(IMAGE, *IMAGE.batch(), torch.ones(3), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(found, torch.zeros_like(found))


def test_half_precision_is_added_up_in_float64_on_a_cpu() -> None:
    shape = Convolution(channels=3, outputs=4, sizes=(12, 12), kernel=3, records=64)
    batch = shape.batch(torch.bfloat16)
    weights_B = torch.ones(64)  # noqa: N806
    found = summed(shape, *batch, weights_B, weights_B > 0)
    expected = shape.grads_by_loop(*batch).sum(0)
    assert found.dtype is torch.float64
    assert (found.double() - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("shape", [SHAPES["sequence, groups"], SHAPES["image, views, groups"], SHAPES["volume"]])
def test_the_sum_without_tf32_is_the_same_and_a_sound_operator_that_leaves_torchs_settings(shape: Convolution) -> None:
    batch, geometry = shape.batch(torch.float32), shape.geometry
    numbers = (list(geometry.kernel), list(geometry.stride), list(geometry.padding), list(geometry.dilation))
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    operator = torch.ops.lehr.convolution_sum.default
    expected = summed(shape, *batch, torch.ones(shape.records), torch.ones(shape.records, dtype=torch.bool))
    torch.testing.assert_close(operator(*batch, *numbers, shape.groups), expected.float())
    torch.library.opcheck(operator, (*batch, *numbers, shape.groups), test_utils=("test_schema", "test_faketensor"))
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_sums_without_tf32_whatever_torch_is_set_to(dtype: torch.dtype) -> None:
    assert torch.backends.cudnn.allow_tf32
    shape = Convolution(channels=64, outputs=64, sizes=(16, 16), kernel=3, groups=2, records=8)
    batch = shape.batch(dtype, "cuda")
    weights_B = torch.linspace(0.1, 1, 8)  # noqa: N806
    found = summed(shape, *batch, weights_B.cuda(), weights_B.cuda() > 0)
    expected = torch.tensordot(weights_B.double(), shape.grads_by_loop(*batch), dims=1)
    assert (found.cpu().double() - expected).norm() <= 1e-5 * expected.norm()
