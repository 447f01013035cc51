from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lehr.gradients.kernels import triton_convolution
from lehr.gradients.kernels.geometry import Geometry
from tests.gradients.kernels.convolutions import Convolution

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SQUARE = Convolution(channels=3, outputs=8, sizes=(9, 9), kernel=3, stride=2, padding=1, views=2)


def on_a_made_up_gpu(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    "shape, dtype, groups, is_taken",
    [
        ((4, 8, 6, 6), torch.bfloat16, 1, True),
        ((4, 8, 6, 6), torch.float32, 1, False),
        ((4, 8, 6, 6), torch.bfloat16, 2, False),
        ((4, 8, 6), torch.bfloat16, 1, False),
        ((4, 8, 6, 6, 6), torch.bfloat16, 1, False),
    ],
)
def test_only_images_in_bfloat16_without_groups_are_taken(
    shape: tuple[int, ...], dtype: torch.dtype, groups: int, is_taken: bool
) -> None:
    axes = len(shape) - 2
    geometry = Geometry((1,) * axes, (1,) * axes, (0,) * axes, (1,) * axes, groups)
    values = on_a_made_up_gpu(shape, dtype)
    assert triton_convolution.takes(values, values, geometry) is is_taken


def test_nothing_is_taken_on_a_cpu() -> None:
    inputs, output_grads = SQUARE.batch(torch.bfloat16)
    assert not triton_convolution.takes(inputs, output_grads, SQUARE.geometry)


def test_the_engine_loads_without_triton() -> None:
    program = "import sys; sys.modules['triton'] = None; import lehr.gradients.ghost"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_what_a_compiler_is_told_about_shapes_and_types_is_what_the_kernels_give() -> None:
    pytest.importorskip("triton", reason="Triton is for Linux")
    images, places = SQUARE.records * SQUARE.views, SQUARE.places
    inputs = on_a_made_up_gpu((images, 3, 9, 9), torch.bfloat16)
    output_grads = on_a_made_up_gpu((images, 8, *places), torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        norms = triton_convolution.squared_norms(inputs, output_grads, SQUARE.geometry, records=3)
        grads, kept_norms = triton_convolution.formed(inputs, output_grads, SQUARE.geometry, records=3)
    assert norms.shape == kept_norms.shape == (3,)
    assert grads.shape == (3, 8, 27)
    assert norms.dtype is kept_norms.dtype is grads.dtype is torch.float32


@on_a_gpu
def test_the_kernels_are_sound_operators() -> None:
    inputs, output_grads = SQUARE.batch(torch.bfloat16, "cuda")
    numbers = ([3, 3], [2, 2], [1, 1], [1, 1])
    checks = ("test_schema", "test_faketensor")
    for operator, last in (("convolution_norms", (3,)), ("formed_convolution", (3,))):
        torch.library.opcheck(
            getattr(torch.ops.lehr, operator).default, (inputs, output_grads, *numbers, *last), test_utils=checks
        )
    weights = torch.linspace(0, 1, 6, device="cuda")
    torch.library.opcheck(
        torch.ops.lehr.weighted_convolution_parts.default, (inputs, output_grads, weights, *numbers), test_utils=checks
    )
