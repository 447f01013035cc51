from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton", reason="Triton is for Linux")

from lehr.gradients import triton_kernels
from tests.gradients import triton_twins

ROOT = Path(__file__).parents[2]
# Measured: 2e-6, what the rounding that is added on purpose to norms by products of places comes to.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def distances() -> dict[str, dict[str, float]]:
    """How far the kernels are from a loop: on a GPU themselves in bfloat16, elsewhere by the interpreter in float32."""
    if torch.cuda.is_available():
        return triton_twins.distances(dtype=torch.bfloat16, device="cuda")
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gradients.triton_twins"],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found: dict[str, dict[str, float]] = json.loads(finished.stdout)
    return found


@pytest.mark.parametrize("shape", [*triton_twins.SHAPES, *(f"sequence, {name}" for name in triton_twins.SEQUENCES)])
def test_norms_and_what_is_kept_and_sums_are_those_of_a_loop(
    distances: dict[str, dict[str, float]], shape: str
) -> None:
    assert len(distances[shape]) >= 4
    assert {way: far for way, far in distances[shape].items() if not far <= TOLERANCE} == {}


def test_both_forms_of_the_norm_were_tried(distances: dict[str, dict[str, float]]) -> None:
    assert {"norms, gram True", "norms, gram False"} <= {way for found in distances.values() for way in found}


def test_the_layout_of_the_output_gradients_does_not_matter(distances: dict[str, dict[str, float]]) -> None:
    assert len(distances["layouts"]) >= 7
    assert {layout: far for layout, far in distances["layouts"].items() if not far <= TOLERANCE} == {}


@pytest.mark.parametrize("images", [1, 2, 7, 131, 1024, 4096])
@pytest.mark.parametrize("channels, outputs, size", [(1, 16, 14), (3, 16, 32), (16, 64, 32), (256, 256, 8)])
def test_every_image_is_in_exactly_one_partial_sum(images: int, channels: int, outputs: int, size: int) -> None:
    parts = triton_kernels.splits(images, channels, outputs, 9, size**2)
    together = -(-images // parts)
    assert 1 <= parts <= images
    assert (parts - 1) * together < images <= parts * together


@pytest.mark.parametrize("tiling", [triton_kernels.norm_tiling, triton_kernels.gram_tiling, triton_kernels.sum_tiling])
@given(channels=st.integers(1, 2048), outputs=st.integers(1, 2048), places=st.integers(1, 2**16))
def test_tiles_are_powers_of_two_that_tensor_cores_take(
    tiling: Callable[..., triton_kernels.Tiling], channels: int, outputs: int, places: int
) -> None:
    found = tiling(channels, outputs, 9, places)
    sides = (found.tile_o, found.tile_w, found.tile_p)
    assert all(side >= 16 and side & (side - 1) == 0 for side in sides)
    # One block keeps its accumulator in registers and two tiles per stage in shared memory, of which a GPU has 227 KiB.
    assert 2 * found.num_stages * found.tile_p * (found.tile_o + found.tile_w) <= 227 * 2**10
    assert prod(sides[:2]) <= 128 * 128


def test_a_gram_tile_holds_every_place_that_the_form_is_chosen_for() -> None:
    assert all(triton_kernels.gram_tiling(16, 16, 9, places).tile_p >= places for places in range(1, 65))


def test_the_engine_loads_without_triton() -> None:
    program = "import sys; sys.modules['triton'] = None; import lehr.gradients.convolutions"
    subprocess.run([sys.executable, "-c", program], check=True)
