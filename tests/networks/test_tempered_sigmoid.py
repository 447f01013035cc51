"""The tempered sigmoid: its values and slopes, what it becomes at the ends of its family, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.data.known import KNOWN
from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.networks.tempered_sigmoid import BEST, TemperedSigmoid
from tests.gradients.oracle import assert_agrees, batch, squared_distance

TRIPLETS = [*BEST.values(), (2.0, 2.0, 1.0), (1.0, 1.0, 0.0), (3.0, 0.5, -1.0), (0.5, 8.0, 2.0)]
X = torch.arange(-120, 121, dtype=torch.float64) / 20
every_triplet = pytest.mark.parametrize("triplet", TRIPLETS, ids=str)


@every_triplet
def test_it_is_the_formula_of_the_paper(triplet: tuple[float, float, float]) -> None:
    scale, inverse_temperature, offset = triplet
    expected = scale / (1 + torch.exp(-inverse_temperature * X)) - offset
    torch.testing.assert_close(TemperedSigmoid(*triplet)(X), expected, rtol=0, atol=1e-14 * scale)
    torch.testing.assert_close(TemperedSigmoid(*triplet)(X.float()), expected.float(), rtol=0, atol=1e-6 * scale)


def test_two_two_one_is_tanh_to_the_bit() -> None:
    for x in (X, X.float()):
        assert torch.equal(TemperedSigmoid(2, 2, 1)(x), torch.tanh(x))
    assert repr(TemperedSigmoid()) == repr(TemperedSigmoid(2, 2, 1))


def test_one_one_zero_is_the_sigmoid() -> None:
    torch.testing.assert_close(TemperedSigmoid(1, 1, 0)(X), torch.sigmoid(X), rtol=0, atol=1e-15)


@pytest.mark.parametrize("inverse_temperature", [1e-2, 1e-4, 1e-8])
def test_a_small_inverse_temperature_with_a_scale_to_match_is_the_identity(inverse_temperature: float) -> None:
    scale = 4 / inverse_temperature
    layer = TemperedSigmoid(scale, inverse_temperature, scale / 2)
    # tanh(u) differs from u by at most |u|³ / 3, where u = T·x/2
    furthest = inverse_temperature**2 * X.abs().max().item() ** 3 / 12
    torch.testing.assert_close(layer(X), X, rtol=1e-14, atol=furthest)
    torch.testing.assert_close(layer(X.float()), X.float(), rtol=1e-6, atol=furthest)


def test_a_large_inverse_temperature_is_a_step() -> None:
    scale, offset = 1.5, 0.25
    step = scale * torch.heaviside(X, torch.tensor(0.5, dtype=X.dtype)) - offset
    assert not torch.allclose(TemperedSigmoid(scale, 4, offset)(X), step, atol=1e-3)
    torch.testing.assert_close(TemperedSigmoid(scale, 1e4, offset)(X), step, rtol=0, atol=1e-15)


@every_triplet
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_input_however_large_leaves_its_range_or_makes_a_nan(
    triplet: tuple[float, float, float], dtype: torch.dtype
) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, -largest, -1e4, 0, 1e4, largest, math.inf], dtype=dtype, requires_grad=True)
    values = TemperedSigmoid(*triplet)(x)
    (slopes,) = torch.autograd.grad(values.sum(), x)
    scale, _, offset = triplet
    ends = torch.tensor([-offset] * 3 + [scale / 2 - offset] + [scale - offset] * 3)
    torch.testing.assert_close(values.float(), ends, rtol=0, atol=4 * scale * torch.finfo(dtype).eps)
    assert slopes.isfinite().all()
    assert TemperedSigmoid(*triplet)(torch.tensor(math.nan)).isnan()


@every_triplet
def test_the_slope_is_nowhere_above_a_quarter_of_scale_times_inverse_temperature(
    triplet: tuple[float, float, float],
) -> None:
    x = X.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(TemperedSigmoid(*triplet)(x).sum(), x)
    steepest = triplet[0] * triplet[1] / 4
    assert slopes.min() >= 0
    assert slopes.max() <= steepest * (1 + 1e-12)
    torch.testing.assert_close(slopes[X == 0], torch.tensor([steepest], dtype=torch.float64))
    assert torch.autograd.gradcheck(TemperedSigmoid(*triplet), X[::20].clone().requires_grad_())


def test_the_best_of_the_paper_are_named_after_data_sets_that_can_be_loaded() -> None:
    assert set(BEST) < set(KNOWN)


class Network(nn.Module):
    """One activation with parameters on either side."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3), activation, nn.Flatten(), nn.Linear(12, 4)).double()

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(images)
        return scores


@every_triplet
def test_its_gradients_record_by_record_are_those_of_plain_backward_passes(triplet: tuple[float, float, float]) -> None:
    torch.manual_seed(0)
    assert_agrees(Network(TemperedSigmoid(*triplet)), *batch(5, 1, 4, 4))


def test_a_network_with_the_default_has_the_gradients_of_one_with_tanh() -> None:
    found = []
    for activation in (TemperedSigmoid(), nn.Tanh()):
        torch.manual_seed(0)
        engine = GhostEngine(Network(activation), squared_distance, compiled=False)
        found.append(engine.gradients(*batch(5, 1, 4, 4)).norms())
    torch.testing.assert_close(found[0], found[1], rtol=1e-13, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "2", True, None, 10**400], ids=str)
@pytest.mark.parametrize("name", ["scale", "inverse_temperature", "offset"])
def test_what_is_no_finite_number_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=f"^{name} must be a finite number"):
        TemperedSigmoid(**{name: value})


@pytest.mark.parametrize("value", [0, -1.0])
@pytest.mark.parametrize("name", ["scale", "inverse_temperature"])
def test_scale_and_inverse_temperature_are_above_zero(name: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=f"^{name} must be a finite number > 0"):
        TemperedSigmoid(**{name: value})
