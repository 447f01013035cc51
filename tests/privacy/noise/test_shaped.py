"""Noise of any shape is scaled so that it is worth exactly its multiplier, or refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from lehr.accounting.events import Gaussian
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, StepOutcome
from lehr.privacy.noise import (
    IsotropicNoise,
    OptimisedNoise,
    ProportionalNoise,
    bounds_of,
    closed_form,
    fitted,
    projected_gradient,
    shaped_release,
)
from lehr.privacy.rng import RunKey

KEY = RunKey(bytes(range(32)))
COUNT = 4000
SIZES = st.one_of(st.just(0.0), st.floats(1e-9, 1e3), st.floats(1e-60, 1e60))


def worth(bounds: dict[str, Tensor], stds: dict[str, Tensor]) -> float:
    """The noise multiplier that these standard deviations have: the root of one over the sum of squared ratios."""
    ratios = torch.cat([(bounds[name] / stds[name])[bounds[name] > 0] for name in bounds])
    return 1 / float(ratios.norm())


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def split(values: list[float]) -> dict[str, Tensor]:
    return {"first": numbers(*values[:2]), "second": numbers(*values[2:]).view(1, -1)}


@given(
    pairs=st.lists(st.tuples(SIZES, SIZES), min_size=3, max_size=8),
    noise_multiplier=st.floats(0.1, 30),
)
@example(pairs=[(1.0, 1e-60), (1.0, 1e60), (0.0, 0.0)], noise_multiplier=1.0)
@example(pairs=[(1e-9, 1e-100), (1e3, 1e-100), (0.0, 1e-100)], noise_multiplier=1.0)
@example(pairs=[(1.0, 1e200), (0.0, 1e200), (2.0, 1e200)], noise_multiplier=1.0)
@settings(max_examples=200, deadline=None)
def test_every_shape_meets_the_constraint_exactly_or_is_refused(
    pairs: list[tuple[float, float]], noise_multiplier: float
) -> None:
    bounds, shape = split([bound for bound, _ in pairs]), split([size for _, size in pairs])
    is_covered = all(size > 0 for bound, size in pairs if bound > 0)
    if not is_covered or not any(bound for bound, _ in pairs) or not any(size for _, size in pairs):
        with pytest.raises(InvalidValue):
            fitted(bounds, shape, noise_multiplier=noise_multiplier)
        return
    stds = fitted(bounds, shape, noise_multiplier=noise_multiplier)
    assert noise_multiplier <= worth(bounds, stds) <= noise_multiplier * (1 + 1.1e-6)
    largest = max(size for _, size in pairs)
    scale = max(float(std.max()) for std in stds.values()) / largest
    for name, std in stds.items():
        torch.testing.assert_close(std, scale * shape[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("what", ["shape", "bounds"])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_shape_or_bound_that_is_no_size_is_refused_wherever_it_stands(wrong: float, what: str, place: int) -> None:
    given = {"shape": [1.0, 2.0, 0.5, 1.0], "bounds": [1.0, 0.0, 2.0, 0.0]}
    given[what][place] = wrong
    with pytest.raises(InvalidValue, match=f"{what} must be finite numbers"):
        fitted(split(given["bounds"]), split(given["shape"]), noise_multiplier=1.0)


def test_a_coordinate_that_can_move_is_not_left_without_noise() -> None:
    with pytest.raises(InvalidValue, match="shape must be above zero wherever a record can move the sum"):
        fitted({"weight": numbers(1.0, 1.0)}, {"weight": numbers(1.0, 0.0)}, noise_multiplier=1.0)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_noise_multiplier_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        fitted({"weight": numbers(1.0)}, {"weight": numbers(1.0)}, noise_multiplier=wrong)


def test_a_bound_on_the_norm_alone_is_refused_with_the_reason() -> None:
    private = PrivateSum(values={"weight": torch.zeros(2)}, sensitivity=1.0)
    with pytest.raises(InvalidValue, match="noise of another shape does not cover a bound on the norm"):
        bounds_of(private)


def p_value(noise: Tensor, std: float) -> float:
    return float(stats.kstest(noise.numpy() / std, stats.norm.cdf).pvalue)


def test_each_coordinate_has_the_measured_noise_that_is_stated_and_no_other() -> None:
    """Sizes a thousand times apart, over many steps: σ is accepted, ⅔ σ and 1.5 σ are not."""
    bounds = {"weight": torch.tensor([1.0, 0.5, 0.0]), "bias": torch.tensor([0.25])}
    shape = {"weight": torch.tensor([10.0, 0.01, 1.0]), "bias": torch.tensor([1.0])}
    private = PrivateSum(values={name: torch.zeros_like(value) for name, value in bounds.items()}, sensitivity=1.2)
    private = PrivateSum(values=private.values, sensitivity=1.2, bounds=bounds)
    steps = [
        shaped_release(private, shape, noise_multiplier=1.5, randomness=KEY.at(step=step, attempt=0))
        for step in range(COUNT)
    ]
    stated = steps[0].noise_std
    assert isinstance(stated, dict)
    expected = fitted({name: b.double() for name, b in bounds.items()}, shape, noise_multiplier=1.5)
    assert worth({name: b.double() for name, b in bounds.items()}, stated) == pytest.approx(1.5)
    for name, size in bounds.items():
        drawn = torch.stack([step.values[name].double() for step in steps], dim=1)
        torch.testing.assert_close(stated[name], expected[name])
        for place in range(len(size)):
            std = float(stated[name][place])
            assert p_value(drawn[place], std) > 1e-3
            assert p_value(drawn[place], std * 2 / 3) < 1e-6
            assert p_value(drawn[place], std * 1.5) < 1e-6


def test_the_noise_is_added_to_the_values_in_double_precision_and_does_not_depend_on_them() -> None:
    bounds, shape = {"weight": torch.ones(3)}, {"weight": torch.tensor([1.0, 2.0, 3.0])}

    def released(values: Tensor) -> Tensor:
        private = PrivateSum(values={"weight": values}, sensitivity=math.sqrt(3), bounds=bounds)
        out = shaped_release(private, shape, noise_multiplier=1.0, randomness=KEY.at(step=0, attempt=0))
        assert out.noise_multiplier == 1.0
        return out.values["weight"]

    values = torch.tensor([5.0, -1.0, 0.25], dtype=torch.float64)
    torch.testing.assert_close(released(values) - released(torch.zeros(3, dtype=torch.float64)), values)
    assert released(values.to(torch.bfloat16)).dtype == torch.float32
    assert released(torch.tensor([math.nan, 0, 0])).isfinite().tolist() == [False, True, True]


def test_a_parameter_without_numbers_is_no_obstacle() -> None:
    bounds = {"weight": torch.ones(2), "none": torch.ones(0)}
    stds = fitted(bounds, bounds, noise_multiplier=1.0)
    assert stds["none"].numel() == 0
    assert stds["weight"].tolist() == pytest.approx([math.sqrt(2)] * 2)


RANDOMNESS = RunKey(bytes(range(32))).at(step=0, attempt=0)
VALUES = {"weight": torch.tensor([[1.0, 2.0, 3.0]]), "bias": torch.tensor([4.0])}


def released(private: PrivateSum) -> ReleasedSum:
    return ProportionalNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)


def test_the_noise_of_each_coordinate_is_the_multiplier_times_the_root_of_their_number_times_its_bound() -> None:
    bounds = {"weight": torch.tensor([[0.1, 7.0, 0.0]]), "bias": torch.tensor([1e-5])}
    out = released(PrivateSum(values=VALUES, sensitivity=7.1, bounds=bounds))
    assert isinstance(out.noise_std, dict)
    drawn = RANDOMNESS.normals("noise", VALUES)
    for name, bound in bounds.items():
        std = 2.0 * math.sqrt(3) * bound.double()  # three of four coordinates can move
        torch.testing.assert_close(out.noise_std[name], std, rtol=1.1e-6, atol=0)
        torch.testing.assert_close(out.values[name], (VALUES[name] + std * drawn[name]).float())


def test_a_sum_with_one_bound_for_all_of_it_gets_isotropic_noise() -> None:
    private = PrivateSum(values=VALUES, sensitivity=0.7)
    expected = IsotropicNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    out = released(private)
    assert out.noise_std == expected.noise_std == pytest.approx(1.4)
    assert all(torch.equal(out.values[name], expected.values[name]) for name in VALUES)


def test_it_is_charged_as_a_gaussian_of_its_multiplier() -> None:
    assert ProportionalNoise().event(1.7) == Gaussian(1.7)
    assert ProportionalNoise().needs_bounds


RANDOMNESS_optimised = KEY.at(step=0, attempt=0)
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
        private, noise_multiplier=1.0, randomness=RANDOMNESS_optimised, state={"weight": slopes["weight"].double()}
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
        state = noise.learn(state, StepOutcome(released=released, divisor=2.0, is_accepted=False))
    means = [0.5 * 0.5 * 4, 0, 0.75 * 1]
    root_mean_square = math.sqrt((means[0] ** 2 + means[2] ** 2) / 3)
    assert noise.slopes(state, private)["weight"].tolist() == pytest.approx([means[0], 0.2 * root_mean_square, 0.75])


@pytest.mark.parametrize("released", [math.nan, math.inf, 0.0])
def test_where_nothing_is_known_all_slopes_are_alike(released: float) -> None:
    noise = OptimisedNoise()
    taken = StepOutcome(
        released=ReleasedSum(values={"weight": torch.full((2,), released)}), divisor=1.0, is_accepted=True
    )
    state = noise.learn(noise.start({"weight": torch.zeros(2)}), taken)
    assert noise.slopes(state, {"weight": torch.zeros(2)})["weight"].tolist() == [1, 1]


def test_a_sum_with_one_bound_for_all_of_it_gets_isotropic_noise_optimised() -> None:
    private = PrivateSum(values={"weight": torch.ones(3)}, sensitivity=0.7)
    out = OptimisedNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS_optimised)
    expected = IsotropicNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS_optimised)
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
