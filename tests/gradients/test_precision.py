from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.kernels.geometry import Geometry
from lehr.gradients.precision import MARGINS, PRECISIONS, ROUNDING_OF_SUMS, TF32_MARGIN, margin, narrow, widen
from lehr.interfaces import RecordGradients
from lehr.networks.convolutional import cifar_cnn, paper_cnn
from tests.gradients.small_models import CASES, Case, loss_fn

WEIGHTS = (1.0, 0.7123, 0.0137, 1.234e-4)
NETWORKS = {**CASES, "paper CNN": Case(paper_cnn, (1, 28, 28)), "CIFAR CNN": Case(cifar_cnn, (3, 32, 32))}
ROUNDED = [("as_model", torch.float64), ("as_model", torch.float32), ("bfloat16", torch.float32)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def length(sums: dict[str, Tensor]) -> float:
    return float(torch.stack([value.double().square().sum() for value in sums.values()]).sum().sqrt())


def excesses(gradients: RecordGradients) -> Iterator[float]:
    """How much longer each record is in a sum of its own than its norm said, relative to that, by weight."""
    norms_B = gradients.norms().double()  # noqa: N806
    for index in range(norms_B.shape[0]):
        for weight in WEIGHTS:
            weights_B = torch.zeros(norms_B.shape[0], device=norms_B.device)  # noqa: N806
            weights_B[index] = weight
            yield length(gradients.weighted_sum(weights_B)) / float(weights_B[index] * norms_B[index]) - 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision, dtype", ROUNDED)
@pytest.mark.parametrize("case", NETWORKS.values(), ids=NETWORKS.keys())
def test_what_is_summed_exceeds_its_norm_by_less_than_a_quarter_of_the_margin(
    case: Case, precision: str, dtype: torch.dtype, device: str
) -> None:
    for seed in range(3):
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
    weights_B = torch.tensor([0.7123], device=device)  # noqa: N806
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


def test_narrowing_changes_numbers_and_leaves_words_and_masks() -> None:
    values: Any = {"image": torch.ones(2), "word": torch.ones(2, dtype=torch.long), "is_there": torch.ones(2) > 0}
    types = {name: value.dtype for name, value in narrow(values, torch.bfloat16).items()}
    assert types == {"image": torch.bfloat16, "word": torch.long, "is_there": torch.bool}
    assert narrow(values, None) is values


@pytest.mark.parametrize(
    "given, widened",
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.long, torch.long),
    ],
)
def test_widening_goes_to_float32_or_better(given: torch.dtype, widened: torch.dtype) -> None:
    outputs, rest = widen((torch.ones(2, dtype=given), [torch.ones(1, dtype=given)]))
    assert outputs.dtype is rest[0].dtype is widened
