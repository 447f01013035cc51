"""DPOPT's noise: of all shapes of one worth, the one that moves the loss least."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, Taken
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.optimised import OptimisedNoise, closed_form, projected_gradient
from lehr.noise.shaped import fitted
from lehr.rng import RunKey

KEY = RunKey(bytes(range(32)))
RANDOMNESS = KEY.at(step=0, attempt=0)
MADE = torch.Generator().manual_seed(3)


def spread(*, decades: float, count: int = 12) -> dict[str, Tensor]:
    """Sizes over so many powers of ten."""
    exponents = decades * (torch.rand(count, generator=MADE, dtype=torch.float64) - 0.5)
    return {"first": 10 ** exponents[:5], "second": (10 ** exponents[5:]).view(1, -1)}


BOUNDS, SLOPES = spread(decades=3), spread(decades=2)


def variance(shape: dict[str, Tensor], *, noise_multiplier: float = 1.5) -> float:
    """Of the first-order change of the loss, under noise of this shape that is worth its multiplier."""
    stds = fitted(BOUNDS, shape, noise_multiplier=noise_multiplier)
    return sum(float((SLOPES[name] * stds[name]).square().sum()) for name in stds)


def test_the_closed_form_has_the_variance_of_its_theorem() -> None:
    """Σ c² σ² = σ² (Σ s |c|)²."""
    whole = sum(float((BOUNDS[name] * SLOPES[name]).sum()) for name in BOUNDS)
    assert variance(closed_form(BOUNDS, SLOPES)) == pytest.approx(1.5**2 * whole**2, rel=3e-6)


def test_the_closed_form_beats_other_shapes_near_and_far() -> None:
    best = closed_form(BOUNDS, SLOPES)
    least = variance(best)
    isotropic = {name: torch.ones_like(value) for name, value in BOUNDS.items()}
    assert least < variance(BOUNDS)
    assert least < variance(isotropic)
    for decades in (0.01, 0.1, 1.0, 4.0):
        for _ in range(30):
            factor = spread(decades=decades)
            assert least < variance({name: best[name] * factor[name] for name in best})


def test_fifty_steps_of_projected_gradient_come_close_to_it() -> None:
    least = variance(closed_form(BOUNDS, SLOPES))
    found = variance(projected_gradient(BOUNDS, SLOPES))
    assert least * (1 - 1e-8) <= found <= 1.01 * least
    assert variance(projected_gradient(BOUNDS, SLOPES, steps=1)) > 1.05 * least


@pytest.mark.parametrize("found_by", ["closed-form", "projected-gradient"])
def test_coordinates_that_cannot_move_have_no_noise_and_spoil_nothing(found_by: Any) -> None:
    bounds, slopes = {"weight": torch.tensor([1.0, 0.0, 2.0])}, {"weight": torch.tensor([1.0, 3.0, 0.5])}
    private = PrivateSum(values={"weight": torch.zeros(3)}, sensitivity=2.3, bounds=bounds)
    out = OptimisedNoise(found_by=found_by).release(
        private, noise_multiplier=1.0, randomness=RANDOMNESS, state={"weight": slopes["weight"].double()}
    )
    assert isinstance(out.noise_std, dict)
    # σ_i² = (s_i / |c_i|) Σ s_j |c_j|, and the sum is 1 + 1.
    assert out.noise_std["weight"].tolist() == pytest.approx([math.sqrt(2), 0, math.sqrt(8)], rel=1e-3)


def test_slopes_are_a_running_mean_of_released_gradients_floored_and_nothing_else() -> None:
    noise = OptimisedNoise(memory=0.5, least_share=0.2)
    state = noise.start({"weight": torch.zeros(3)})
    private = {"weight": torch.full((3,), 77.0)}
    assert noise.slopes(state, private)["weight"].tolist() == [1, 1, 1]
    for values in ([8.0, 0.0, -2.0], [0.0, 0.0, -2.0]):
        released = ReleasedSum(values={"weight": torch.tensor(values)})
        state = noise.learn(state, Taken(released=released, divisor=2.0, is_accepted=False))
    means = [0.5 * 0.5 * 4, 0, 0.75 * 1]
    root_mean_square = math.sqrt((means[0] ** 2 + means[2] ** 2) / 3)
    assert noise.slopes(state, private)["weight"].tolist() == pytest.approx([means[0], 0.2 * root_mean_square, 0.75])


@pytest.mark.parametrize("released", [math.nan, math.inf, 0.0])
def test_where_nothing_is_known_all_slopes_are_alike(released: float) -> None:
    noise = OptimisedNoise()
    taken = Taken(released=ReleasedSum(values={"weight": torch.full((2,), released)}), divisor=1.0, is_accepted=True)
    state = noise.learn(noise.start({"weight": torch.zeros(2)}), taken)
    assert noise.slopes(state, {"weight": torch.zeros(2)})["weight"].tolist() == [1, 1]


def test_a_sum_with_one_bound_for_all_of_it_gets_isotropic_noise() -> None:
    private = PrivateSum(values={"weight": torch.ones(3)}, sensitivity=0.7)
    out = OptimisedNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    expected = IsotropicNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    assert out.noise_std == pytest.approx(1.4)
    assert torch.equal(out.values["weight"], expected.values["weight"])


def test_settings_out_of_range_are_refused() -> None:
    wrong_word: Any = "luck"
    with pytest.raises(InvalidValue, match="found_by"):
        OptimisedNoise(found_by=wrong_word)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(InvalidValue, match="memory"):
            OptimisedNoise(memory=wrong)
        with pytest.raises(InvalidValue, match="least_share"):
            OptimisedNoise(least_share=wrong)
