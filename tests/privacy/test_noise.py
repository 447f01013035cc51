"""Noise has the scale that is stated, once for a whole draw, whatever the values are; other scales are rejected."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from lehr.accounting.accountant import bound
from lehr.accounting.events import Gaussian
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, StepOutcome
from lehr.privacy.noise import (
    BudgetedNoise,
    FixedNoise,
    IsotropicNoise,
    NoNoise,
    OptimisedNoise,
    ProportionalNoise,
    ShapedNoise,
    closed_form,
    fitted,
    projected_gradient,
    with_rounding,
)
from lehr.privacy.rng import RunKey

KEY = RunKey(bytes(range(32)))
RANDOMNESS = KEY.at(step=0, attempt=0)
COUNT = 20_000


def released(
    values: Tensor, *, noise_multiplier: float = 1.5, sensitivity: float = 0.2, step: int = 0, attempt: int = 0
) -> Tensor:
    private = PrivateSum(values={"weight": values}, sensitivity=sensitivity)
    randomness = KEY.at(step=step, attempt=attempt)
    return IsotropicNoise().release(private, noise_multiplier=noise_multiplier, randomness=randomness).values["weight"]


def p_value(noise: Tensor, *, std: float) -> float:
    return float(stats.kstest(noise.double().numpy() / std, stats.norm.cdf).pvalue)


# --- Isotropic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise_multiplier, sensitivity", [(1.5, 0.2), (0.01, 1.0), (40.0, 1e-3)])
def test_the_noise_is_the_multiplier_times_the_sensitivity(noise_multiplier: float, sensitivity: float) -> None:
    noise = released(torch.zeros(COUNT), noise_multiplier=noise_multiplier, sensitivity=sensitivity)
    std = noise_multiplier * sensitivity
    assert p_value(noise, std=std) > 1e-3
    for wrong in (2 / 3, 1.5, 0.9, 1.1):
        assert p_value(noise, std=wrong * std) < 1e-6
    assert IsotropicNoise().event(noise_multiplier) == Gaussian(noise_multiplier)


def test_the_far_tails_of_the_noise_are_there() -> None:
    """Of four million values some 17 lie beyond 4.6 standard deviations, half of them on each side."""
    noise = released(torch.zeros(4_000_000), noise_multiplier=2.0, sensitivity=0.5)
    for beyond in ((noise > 4.6).sum(), (noise < -4.6).sum()):
        assert stats.binomtest(int(beyond), len(noise), stats.norm.sf(4.6)).pvalue > 1e-3
    assert stats.binomtest(0, len(noise), stats.norm.sf(4.6)).pvalue < 1e-3


def test_the_noise_does_not_depend_on_the_values() -> None:
    values = torch.linspace(-3, 3, COUNT, dtype=torch.float64)
    before = values.clone()
    empty, full = released(torch.zeros(COUNT, dtype=torch.float64)), released(values)
    torch.testing.assert_close(full - empty, values, rtol=0, atol=1e-14)
    assert values.equal(before)
    for bad in (math.nan, math.inf):  # a refusal would tell something about the records
        assert released(torch.tensor([bad, 0.0])).isfinite().tolist() == [False, True]


def test_steps_attempts_and_parameters_have_independent_noise() -> None:
    first = released(torch.zeros(COUNT))
    private = PrivateSum(values={"first": torch.zeros(COUNT), "second": torch.zeros(COUNT)}, sensitivity=0.2)
    found = IsotropicNoise().release(private, noise_multiplier=1.5, randomness=RANDOMNESS).values
    assert list(found) == ["first", "second"]
    assert all(abs(float(value.std()) / 0.3 - 1) < 4 / math.sqrt(COUNT) for value in found.values())
    pairs = [(first, released(torch.zeros(COUNT), step=1)), (first, released(torch.zeros(COUNT), attempt=1))]
    for one, other in [*pairs, (found["first"], found["second"])]:
        assert abs(stats.pearsonr(one, other).statistic) < 4 / math.sqrt(COUNT)
    assert stats.pearsonr(first, released(torch.ones(COUNT))).statistic > 0.99


@pytest.mark.parametrize(
    "dtype, kept",
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_the_noise_is_added_in_double_precision_and_rounded_once(dtype: torch.dtype, kept: torch.dtype) -> None:
    values = torch.linspace(-3, 3, 100).to(dtype)
    found = released(values)
    noise = RANDOMNESS.normals("noise", {"weight": values})["weight"] * (1.5 * with_rounding(0.2))
    assert found.dtype == kept
    assert found.equal((values.double() + noise).to(kept))


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, True, None])
def test_impossible_multipliers_and_sensitivities_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        IsotropicNoise().event(wrong)
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        released(torch.zeros(2), noise_multiplier=wrong)
    with pytest.raises(InvalidValue, match="sensitivity"):
        released(torch.zeros(2), sensitivity=wrong)


# --- Fixed, none, budgeted ------------------------------------------------------------------------------------------

VALUES = {"weight": torch.ones(3)}


@pytest.mark.parametrize("noise", [IsotropicNoise(), NoNoise(), ProportionalNoise()], ids=lambda n: type(n).__name__)
def test_fixed_noise_learns_nothing(noise: FixedNoise) -> None:
    for is_accepted in (True, False):
        taken = StepOutcome(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=is_accepted)
        assert noise.start(VALUES) == noise.learn({}, taken) == {}
    assert noise.factor({}) == 1.0


def test_no_noise_releases_the_sum_for_an_infinite_epsilon() -> None:
    private = PrivateSum(values={"weight": torch.arange(3, dtype=torch.bfloat16)}, sensitivity=1.0)
    found = NoNoise().release(private, noise_multiplier=1.0, randomness=RANDOMNESS)
    assert found.values["weight"].equal(torch.arange(3, dtype=torch.float32))
    assert (found.noise_std, found.noise_multiplier) == (0.0, 0.0)
    assert NoNoise().event() == Gaussian(0.0)
    assert bound(NoNoise().event(), delta=1e-5).epsilon == math.inf
    for wrong in (1.0, 1e-300, -1.0, math.nan, math.inf):
        with pytest.raises(InvalidValue, match="noise_multiplier"):
            NoNoise().event(wrong)


def after(noise: BudgetedNoise, *accepted: bool) -> ComponentState:
    state = noise.start(VALUES)
    for is_accepted in accepted:
        state = noise.learn(
            state, StepOutcome(released=ReleasedSum(values=VALUES), divisor=1.0, is_accepted=is_accepted)
        )
    return state


def cost(noise: BudgetedNoise, *accepted: bool) -> float:
    """1 / 2 σ² of the next measurement, over that of the first."""
    return 1 / noise.factor(after(noise, *accepted)) ** 2


@pytest.mark.parametrize("growth", [0.1, 0.5, 2.0])
def test_budgeted_noise_measures_the_difference_after_a_rejection(growth: float) -> None:
    noise = BudgetedNoise(growth=growth)
    precision = 0.0
    for rejections in range(5):
        precision += cost(noise, *[False] * rejections)
        assert precision == pytest.approx((1 + growth) ** rejections)
        assert precision == pytest.approx(float(after(noise, *[False] * rejections)["whole"]))
    assert cost(noise, True, True) == pytest.approx(1)
    assert cost(noise, True, False, True) == pytest.approx(1 + growth)
    assert cost(noise, False, False, True, True) == pytest.approx((1 + growth) ** 2)


def test_budgeted_noise_has_the_multiplier_that_is_charged() -> None:
    """The factor is applied by the caller that charges it, so that both use one number."""
    noise, private = BudgetedNoise(), PrivateSum(values=VALUES, sensitivity=0.5)
    out = noise.release(private, noise_multiplier=4.0, randomness=RANDOMNESS, state=after(noise, False))
    assert (out.noise_std, out.noise_multiplier) == (4.0 * with_rounding(0.5), 4.0)
    assert noise.event(4.0) == Gaussian(4.0)
    for wrong in (0.0, -0.1, math.nan, math.inf):
        with pytest.raises(InvalidValue, match="growth"):
            BudgetedNoise(growth=wrong)


# --- Shaped ---------------------------------------------------------------------------------------------------------

SIZES = st.one_of(st.just(0.0), st.floats(1e-9, 1e3), st.floats(1e-60, 1e60))


class Given(ShapedNoise):
    """Noise of a shape that is given as its state."""

    def shape(self, bounds: Any, state: Any) -> Any:
        return state


def worth(bounds: dict[str, Tensor], stds: dict[str, Tensor]) -> float:
    """The noise multiplier that these standard deviations have: the root of one over the sum of squared ratios."""
    return 1 / float(torch.cat([(bounds[name].double() / stds[name])[bounds[name] > 0] for name in bounds]).norm())


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def split(values: list[float]) -> dict[str, Tensor]:
    return {"first": numbers(*values[:2]), "second": numbers(*values[2:]).view(1, -1)}


@given(pairs=st.lists(st.tuples(SIZES, SIZES), min_size=3, max_size=8), noise_multiplier=st.floats(0.1, 30))
@example(pairs=[(1.0, 1e-60), (1.0, 1e60), (0.0, 0.0)], noise_multiplier=1.0)
@example(pairs=[(1e-9, 1e-100), (1e3, 1e-100), (0.0, 1e-100)], noise_multiplier=1.0)
@example(pairs=[(1.0, 1e200), (0.0, 1e200), (2.0, 1e200)], noise_multiplier=1.0)
@example(pairs=[(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)], noise_multiplier=1.0)
@settings(max_examples=200, deadline=None)
def test_every_shape_meets_the_constraint_or_is_refused(
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
    scale = max(float(std.max()) for std in stds.values()) / max(size for _, size in pairs)
    for name, std in stds.items():
        torch.testing.assert_close(std, scale * shape[name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
@pytest.mark.parametrize("what", ["shape", "bounds", "noise_multiplier"])
@pytest.mark.parametrize("index", [0, 1, 3])
def test_impossible_shapes_and_bounds_are_refused(wrong: float, what: str, index: int) -> None:
    given = {"shape": [1.0, 2.0, 0.5, 1.0], "bounds": [1.0, 0.0, 2.0, 0.0], "noise_multiplier": [1.0] * 4}
    given[what][index] = wrong
    with pytest.raises(InvalidValue, match=what):
        fitted(split(given["bounds"]), split(given["shape"]), noise_multiplier=given["noise_multiplier"][index])


def test_each_coordinate_has_the_stated_noise() -> None:
    """Sizes a thousand times apart, over many steps: σ is accepted, ⅔ σ and 1.5 σ are not."""
    bounds = {"weight": torch.tensor([1.0, 0.5, 0.0]), "bias": torch.tensor([0.25]), "none": torch.ones(0)}
    shape = {"weight": torch.tensor([10.0, 0.01, 1.0]), "bias": torch.tensor([1.0]), "none": torch.ones(0)}
    zeros = {name: torch.zeros_like(value) for name, value in bounds.items()}
    private = PrivateSum(values=zeros, sensitivity=1.2, bounds=bounds)
    steps = [
        Given().release(private, noise_multiplier=1.5, randomness=KEY.at(step=step, attempt=0), state=shape)
        for step in range(4000)
    ]
    stated = steps[0].noise_std
    assert isinstance(stated, dict)
    assert worth(bounds, stated) == pytest.approx(1.5)
    for name, stds in stated.items():
        drawn = torch.stack([step.values[name].double() for step in steps], dim=1)
        for noise, std in zip(drawn, stds.tolist(), strict=True):
            assert p_value(noise, std=std) > 1e-3
            assert p_value(noise, std=std * 2 / 3) < 1e-6
            assert p_value(noise, std=std * 1.5) < 1e-6


def test_shaped_noise_is_added_in_double_precision_whatever_the_values() -> None:
    def release(values: Tensor) -> Tensor:
        private = PrivateSum(values={"weight": values}, sensitivity=math.sqrt(3), bounds={"weight": torch.ones(3)})
        shape = {"weight": torch.tensor([1.0, 2.0, 3.0])}
        out = Given().release(private, noise_multiplier=1.0, randomness=RANDOMNESS, state=shape)
        assert out.noise_multiplier == 1.0
        return out.values["weight"]

    values = numbers(5.0, -1.0, 0.25)
    torch.testing.assert_close(release(values) - release(torch.zeros(3, dtype=torch.float64)), values)
    assert release(values.to(torch.bfloat16)).dtype == torch.float32
    assert release(torch.tensor([math.nan, 0, 0])).isfinite().tolist() == [False, True, True]


def test_proportional_noise_follows_the_bounds() -> None:
    values = {"weight": torch.tensor([[1.0, 2.0, 3.0]]), "bias": torch.tensor([4.0])}
    bounds = {"weight": torch.tensor([[0.1, 7.0, 0.0]]), "bias": torch.tensor([1e-5])}
    private = PrivateSum(values=values, sensitivity=7.1, bounds=bounds)
    out = ProportionalNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    assert isinstance(out.noise_std, dict)
    drawn = RANDOMNESS.normals("noise", values)
    for name, limit in bounds.items():
        std = 2.0 * math.sqrt(3) * limit.double()  # three of four coordinates can move
        torch.testing.assert_close(out.noise_std[name], std, rtol=1.1e-6, atol=0)
        torch.testing.assert_close(out.values[name], (values[name] + std * drawn[name]).float())


@pytest.mark.parametrize("noise", [ProportionalNoise(), OptimisedNoise()], ids=lambda noise: type(noise).__name__)
def test_a_sum_without_bounds_of_coordinates_gets_isotropic_noise(noise: ShapedNoise) -> None:
    private = PrivateSum(values=VALUES, sensitivity=0.7)
    expected = IsotropicNoise().release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    out = noise.release(private, noise_multiplier=2.0, randomness=RANDOMNESS)
    assert out.noise_std == expected.noise_std == pytest.approx(1.4)
    assert out.values["weight"].equal(expected.values["weight"])
    assert noise.event(1.7) == Gaussian(1.7)
    assert noise.needs_bounds


# --- Optimised ------------------------------------------------------------------------------------------------------

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


def test_the_closed_form_has_the_least_variance() -> None:
    """Σ c² σ² = σ² (Σ s |c|)²."""
    best = closed_form(BOUNDS, SLOPES)
    least = variance(best)
    whole = sum(float((BOUNDS[name] * SLOPES[name]).sum()) for name in BOUNDS)
    assert least == pytest.approx(1.5**2 * whole**2, rel=3e-6)
    assert least < variance(BOUNDS)
    assert least < variance({name: torch.ones_like(value) for name, value in BOUNDS.items()})
    for decades in (0.01, 0.1, 1.0, 4.0):
        for _ in range(30):
            factor = spread(decades=decades)
            assert least < variance({name: best[name] * factor[name] for name in best})
    assert least * (1 - 1e-8) <= variance(projected_gradient(BOUNDS, SLOPES)) <= 1.01 * least
    assert variance(projected_gradient(BOUNDS, SLOPES, steps=1)) > 1.05 * least


@pytest.mark.parametrize("found_by", ["closed-form", "projected-gradient"])
def test_coordinates_that_cannot_move_have_no_noise(found_by: Any) -> None:
    bounds = {"weight": torch.tensor([1.0, 0.0, 2.0])}
    private = PrivateSum(values={"weight": torch.zeros(3)}, sensitivity=2.3, bounds=bounds)
    out = OptimisedNoise(found_by=found_by).release(
        private, noise_multiplier=1.0, randomness=RANDOMNESS, state={"weight": numbers(1.0, 3.0, 0.5)}
    )
    assert isinstance(out.noise_std, dict)
    # σ_i² = (s_i / |c_i|) Σ s_j |c_j|, and the sum is 1 + 1.
    assert out.noise_std["weight"].tolist() == pytest.approx([math.sqrt(2), 0, math.sqrt(8)], rel=1e-3)


def test_slopes_are_a_floored_running_mean_of_released_gradients() -> None:
    noise = OptimisedNoise(memory=0.5, least_share=0.2)
    state = noise.start({"weight": torch.zeros(3)})
    like = {"weight": torch.full((3,), 77.0)}
    assert noise.slopes(state, like)["weight"].tolist() == [1, 1, 1]
    for values in ([8.0, 0.0, -2.0], [0.0, 0.0, -2.0]):
        released = ReleasedSum(values={"weight": torch.tensor(values)})
        state = noise.learn(state, StepOutcome(released=released, divisor=2.0, is_accepted=False))
    means = [0.5 * 0.5 * 4, 0, 0.75 * 1]
    root_mean_square = math.sqrt((means[0] ** 2 + means[2] ** 2) / 3)
    assert noise.slopes(state, like)["weight"].tolist() == pytest.approx([means[0], 0.2 * root_mean_square, 0.75])


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_all_slopes_are_alike_where_nothing_is_known(value: float) -> None:
    noise, released = OptimisedNoise(), ReleasedSum(values={"weight": torch.full((2,), value)})
    state = noise.learn(
        noise.start({"weight": torch.zeros(2)}), StepOutcome(released=released, divisor=1.0, is_accepted=True)
    )
    assert noise.slopes(state, {"weight": torch.zeros(2)})["weight"].tolist() == [1, 1]


@pytest.mark.parametrize(
    "wrong",
    [{"found_by": "luck"}, *({name: value} for name in ("memory", "least_share") for value in (0.0, 1.0, math.nan))],
    ids=str,
)
def test_impossible_settings_of_optimised_noise_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        OptimisedNoise(**wrong)
