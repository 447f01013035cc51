"""Clip rules on chosen gradients, and adaptive bounds that follow released sums without feeding on their noise.

In the simulations every record has the same gradient, so that its mean is known, and the noise over the squares is that
of a network of 70,000 parameters with batches of 600.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import UNCLIPPED_COUNT, ComponentState, PrivateSum, ReleasedSum, StepOutcome
from lehr.privacy.clipping import (
    LARGEST_CLIP_NORM,
    RAMP,
    SMALLEST_CLIP_NORM,
    SMALLEST_NORM,
    AdaptiveClip,
    AutomaticClip,
    FixedClip,
    FlatClip,
    PerCoordinateClip,
    PerLayerClip,
    Prior,
    QuantileClip,
    QuantileRule,
    RawPrior,
    ReleasedPrior,
    ScheduledClip,
    Unclipped,
    check_clip_norm,
    clipping_by_name,
    with_schedule,
)
from lehr.privacy.noise import IsotropicNoise, ProportionalNoise
from lehr.privacy.rng import RunKey
from lehr.schedules import CONSTANT, Cosine, StepDecay
from tests.privacy.chosen import as_vector, gradients, losses, stored_gradients

KEY = RunKey(bytes(range(32)))
VALUES = {"weight": torch.ones(3)}
RULES = (FlatClip(1.0), AutomaticClip(1.0), PerLayerClip(1.0), PerCoordinateClip(VALUES))


def test_clip_norms_are_numbers_that_float32_can_divide_by() -> None:
    for value in (SMALLEST_CLIP_NORM, 0.1, 1, LARGEST_CLIP_NORM):
        assert check_clip_norm(clip_norm=value) == value
    for wrong in (0, -1, 1e-10, 1e10, math.inf, math.nan, True, "1", None):
        with pytest.raises(InvalidValue, match="bound"):
            check_clip_norm(bound=wrong)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_fixed_rule_is_the_same_at_every_step_and_learns_nothing(rule: FixedClip) -> None:
    taken = StepOutcome(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=True)
    assert rule.start(VALUES) == rule.learn({}, taken) == {}
    assert rule.peek({}, PrivateSum(values=VALUES, sensitivity=1.0), divisor=2.0) == {}
    assert rule.rule({}, 0) is rule.rule({}, 10**6) is rule
    assert rule.unproven is None
    assert rule.needs_coordinates == isinstance(rule, PerCoordinateClip)


# --- Flat and automatic ---------------------------------------------------------------------------------------------

LONG = torch.tensor([[3.0, 0, 0, 0, 4]], dtype=torch.float64)


def test_long_gradients_are_scaled_to_the_clip_norm_and_short_ones_stay() -> None:
    clipped = FlatClip(2.0)(gradients(LONG))
    torch.testing.assert_close(as_vector(clipped.values), LONG[0] * 2 / 5, rtol=1e-11, atol=0)
    assert as_vector(FlatClip(6.0)(gradients(LONG)).values).equal(LONG[0])
    assert FlatClip(2).sensitivity == clipped.sensitivity == 2.0
    assert {FlatClip(1.0), FlatClip(1.0)} == {FlatClip(1.0)}


def test_the_margin_of_the_gradients_is_respected() -> None:
    narrow = gradients(LONG.float(), precision="bfloat16")
    assert narrow.margin > 0
    clipped = as_vector(FlatClip(1.0)(narrow).values).norm().item()
    assert clipped < 1
    assert clipped == pytest.approx(1 / (1 + narrow.margin), rel=2**-8)


@pytest.mark.parametrize("norm", [0, 1e-30, SMALLEST_NORM / 2, 1e-6, 1e-3, 0.01, 1, 1e6])
@pytest.mark.parametrize("stability", [0.0, 0.01])
def test_automatic_clipping_divides_by_the_norm_and_the_stability(norm: float, stability: float) -> None:
    grads = norm * torch.tensor([[0.6, 0, 0, 0, 0.8]], dtype=torch.float64)
    clipped = as_vector(AutomaticClip(2.0, stability=stability)(gradients(grads)).values)
    expected = grads[0] * 2 / (max(norm, SMALLEST_NORM) + stability)
    torch.testing.assert_close(clipped, expected, rtol=1e-7 if norm < SMALLEST_NORM else 1e-10, atol=0)


@pytest.mark.parametrize(
    "rule, wrong, name",
    [
        *((FlatClip, {"clip_norm": value}, "clip_norm") for value in (0, -1.0, math.nan, math.inf, "1")),
        (AutomaticClip, {"clip_norm": math.nan}, "clip_norm"),
        *((AutomaticClip, {"stability": value}, "stability") for value in (-0.01, math.nan, math.inf, 1e10)),
        (PerLayerClip, {"clip_norm": math.nan}, "clip_norm"),
        (PerLayerClip, {"shares": (("first", 0.0),)}, "shares"),
        (PerLayerClip, {"shares": (("first", 1.0), ("first", 1.0))}, "shares"),
        (PerLayerClip, {"shares": (("first", 1e-9), ("second", 1e9))}, "shares"),
        *((PerLayerClip, {"shares": value}, "shares") for value in (1.0, ["first"], {"first": 1.0}, [("a", 1.0, 2.0)])),
        *((PerCoordinateClip, {"bounds": {"weight": value}}, "bounds") for value in (1.0, torch.zeros(3))),
        *(
            (PerCoordinateClip, {"bounds": {"weight": torch.tensor([1.0, value])}}, "bounds")
            for value in (-1, math.nan)
        ),
        (PerCoordinateClip, {"bounds": {"weight": torch.tensor([1.0, math.inf])}}, "bounds"),
        (PerCoordinateClip, {"bounds": {"weight": torch.ones(3, dtype=torch.int64)}}, "bounds"),
        (PerCoordinateClip, {"bounds": {}}, "bounds"),
        *((QuantileClip, {"clip_norm": value}, "clip_norm") for value in (0.0, math.nan, math.inf)),
        *((QuantileClip, {"target_quantile": value}, "target_quantile") for value in (0.0, 1.0, math.nan)),
        *((QuantileClip, {"adaptation_rate": value}, "adaptation_rate") for value in (0.0, -1.0, math.nan)),
        *((QuantileClip, {"count_share": value}, "count_share") for value in (0.0, 1.0, math.nan)),
        *((QuantileClip, {"smallest": value}, "smallest") for value in (0.0, math.nan)),
        *((QuantileClip, {"largest": value}, "largest") for value in (1e-9, math.inf, math.nan)),
        *((AdaptiveClip, {"clip_norm": value}, "clip_norm") for value in (0.0, -1.0, math.nan, math.inf)),
        *((AdaptiveClip, {"bound_scale": value}, "bound_scale") for value in (0.0, -1.0, math.nan, math.inf)),
        *((ReleasedPrior, {"memory": value}, "memory") for value in (0.0, 1.0, -0.1, math.nan)),
        *((ReleasedPrior, {"least_share": value}, "least_share") for value in (0.0, 1.0, -0.1, math.nan)),
        *((ReleasedPrior, {"significance": value}, "significance") for value in (-1.0, math.nan, math.inf)),
        *((RawPrior, {"memory": value}, "memory") for value in (0.0, 1.0, -0.1, math.nan)),
    ],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(rule: Any, wrong: dict[str, Any], name: str) -> None:
    needed: dict[Any, dict[str, Any]] = {
        AutomaticClip: {"clip_norm": 1.0},
        PerLayerClip: {"clip_norm": 1.0},
        QuantileClip: {"clip_norm": 1.0},
        AdaptiveClip: {"clip_norm": 1.0, "prior": ReleasedPrior()},
    }
    with pytest.raises(InvalidValue) as refused:
        rule(**{**needed.get(rule, {}), **wrong})
    assert refused.value.name == name


# --- Schedules ------------------------------------------------------------------------------------------------------

HALVED = StepDecay(every=10, decay=0.5)
CLIPS = (FlatClip(0.8), AutomaticClip(0.8, stability=0.5), PerLayerClip(0.8, shares=(("first", 3.0), ("second", 4.0))))


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
def test_a_scheduled_rule_is_the_same_rule_at_another_clip_norm(clip: Any) -> None:
    scheduled, large = ScheduledClip(clip, HALVED), gradients(torch.full((1, 5), 1e4, dtype=torch.float64))
    for step, factor in ((0, 1.0), (9, 1.0), (10, 0.5), (25, 0.25)):
        rule = scheduled.rule({}, step)
        assert type(rule) is type(clip)
        assert rule.sensitivity == rule(large).sensitivity == 0.8 * factor
        torch.testing.assert_close(as_vector(rule(large).values), factor * as_vector(clip(large).values))
    taken = StepOutcome(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=False)
    assert scheduled.learn(scheduled.start({}), taken) == {}


class Broken:
    def factor(self, step: int) -> float:
        return math.nan


def test_schedules_that_leave_no_clip_norm_are_refused() -> None:
    assert with_schedule(FlatClip(1.0), CONSTANT) == FlatClip(1.0)
    assert with_schedule(FlatClip(1.0), HALVED) == ScheduledClip(FlatClip(1.0), HALVED)
    for schedule, step in ((Cosine(total_steps=100), 100), (Cosine(total_steps=100), 1000), (Broken(), 0)):
        with pytest.raises(InvalidValue, match="clip_norm"):
            ScheduledClip(FlatClip(1.0), schedule).rule({}, step)


# --- No clip --------------------------------------------------------------------------------------------------------


def test_without_a_clip_no_noise_can_be_added() -> None:
    grads = torch.tensor([[1e3, 0, 0, 2.0, 0], [1.0, 1, 1, 1, 1], [math.nan, 0, 0, 0, 0]])
    private = Unclipped()(gradients(grads))
    torch.testing.assert_close(as_vector(private.values), grads[:2].double().sum(0))
    masked = Unclipped()(gradients(grads, mask_B=torch.tensor([False, True, True])))
    assert as_vector(masked.values).tolist() == [1] * 5
    assert private.sensitivity == math.inf
    with pytest.raises(InvalidValue, match="sensitivity"):
        IsotropicNoise().release(private, noise_multiplier=1.0, randomness=KEY.at(step=0, attempt=0))


# --- Per layer ------------------------------------------------------------------------------------------------------

RECORD = torch.tensor([[3.0, 0, 4, 0, 0.1]], dtype=torch.float64)


def test_every_layer_is_clipped_to_its_share() -> None:
    equal = PerLayerClip(1.0)(gradients(RECORD)).values
    torch.testing.assert_close(equal["first.weight"].norm().item(), 1 / math.sqrt(2))
    assert equal["second.weight"].equal(RECORD[:, 3:])
    rule = PerLayerClip.with_norms({"first": 0.3, "second": 0.04})
    clipped = rule(gradients(RECORD))
    torch.testing.assert_close(clipped.values["first.weight"].norm().item(), 0.3)
    torch.testing.assert_close(clipped.values["second.weight"].norm().item(), 0.04)
    assert clipped.sensitivity == rule.sensitivity == math.hypot(0.3, 0.04)
    one, other = (
        PerLayerClip(2.0, shares=(("first", first), ("second", second)))(gradients(10 * RECORD))
        for first, second in ((3, 4), (6, 8))
    )
    torch.testing.assert_close(one.values, other.values)
    assert one.sensitivity == 2.0
    torch.testing.assert_close(one.values["first.weight"].norm().item(), 1.2)


def test_shares_in_lists_are_copied() -> None:
    given = [["first", 3], ["second", 4]]
    rule = PerLayerClip(2.0, shares=given)  # type: ignore[arg-type]
    given[0][1] = 100
    expected = PerLayerClip(2.0, shares=(("first", 3), ("second", 4)))
    assert (rule, hash(rule)) == (expected, hash(expected))


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_weight_and_bias_of_a_layer_share_its_bound_also_behind_a_parametrization() -> None:
    layer = nn.Linear(2, 1).double()
    parametrize.register_parametrization(layer, "weight", Doubled())
    engine = GhostEngine(nn.Sequential(layer), losses, compiled=False)
    clipped = PerLayerClip(1.0)(engine.gradients(torch.ones(1, 2, dtype=torch.float64), torch.zeros(1))).values
    assert len(clipped) == 2
    torch.testing.assert_close(as_vector(clipped).norm().item(), 1.0)


def test_bounds_that_do_not_fit_the_layers_are_refused() -> None:
    for layers in (("first",), ("first", "second", "third")):
        with pytest.raises(InvalidValue, match="shares"):
            PerLayerClip.with_norms(dict.fromkeys(layers, 1.0))(gradients(RECORD))
    with pytest.raises(InvalidValue, match="clip_norms"):
        PerLayerClip.with_norms({"first": math.nan})
    with pytest.raises(InvalidValue, match="clip_norm"):
        PerLayerClip(1e-9)(gradients(RECORD))


# --- Per coordinate -------------------------------------------------------------------------------------------------


def bounds(first: list[float], second: list[float]) -> dict[str, Tensor]:
    return {"first.weight": torch.tensor([first]).float(), "second.weight": torch.tensor([second]).float()}


def test_every_coordinate_is_clipped_to_its_own_bound_record_by_record() -> None:
    rule = PerCoordinateClip(bounds([1, 2, 0.5], [0, 4]))
    records = torch.tensor([[3.0, -3, 0.25, 7, -4], [-3, 1, -9, 1, 0]])
    assert as_vector(rule(stored_gradients(records)).values).tolist() == [1 - 1, -2 + 1, 0.25 - 0.5, 0, -4]


def test_the_sensitivity_is_the_norm_of_the_bounds() -> None:
    given = bounds([1, 2, 2], [4, 0])
    rule = PerCoordinateClip(given)
    found = rule(stored_gradients(torch.ones(1, 5)))
    assert found.sensitivity == rule.sensitivity == 5.0
    assert found.bounds is not None
    assert as_vector(found.bounds).tolist() == [1, 2, 2, 4, 0]
    for changed in (*given.values(), *found.bounds.values(), *rule.bounds.values()):  # all of them copies
        changed.mul_(100)
    assert as_vector(rule(stored_gradients(torch.full((1, 5), 1e3))).values).norm() == rule.sensitivity == 5.0


def test_a_bound_is_not_rounded_up_to_a_narrower_type() -> None:
    third = torch.full((1, 3), 1 / 3)
    rule = PerCoordinateClip({"first.weight": third, "second.weight": third[:, :2]})
    clipped = rule(stored_gradients(torch.ones(1, 5, dtype=torch.bfloat16))).values
    assert as_vector(clipped).max().item() <= third[0, 0].item()


def test_bounds_that_do_not_fit_the_gradients_are_refused() -> None:
    ones = torch.ones(1, 5)
    with pytest.raises(InvalidValue, match="MaterialisedEngine"):
        PerCoordinateClip(bounds([1, 2, 2], [4, 0]))(gradients(ones))
    for wrong in ({"first.weight": torch.ones(1, 3)}, bounds([1, 2], [4, 0])):
        with pytest.raises(InvalidValue, match="bounds"):
            PerCoordinateClip(wrong)(stored_gradients(ones))


# --- Adaptive -------------------------------------------------------------------------------------------------------

MADE = torch.Generator().manual_seed(0)
COUNT = 500
GRADIENT = {
    "large": 0.01 * torch.randn(COUNT, generator=MADE, dtype=torch.float64).exp(),
    "small": 0.002 * torch.randn(COUNT, generator=MADE, dtype=torch.float64),
}
BATCH = 600 * math.sqrt(2 * COUNT / 70_000)
TRUTH = sum(float(value.square().sum()) for value in GRADIENT.values())


def clipped_to(rule: Any) -> dict[str, Tensor]:
    """The sum over a batch of records that all have the gradient."""
    if isinstance(rule, FlatClip):
        scale = min(1, rule.clip_norm / math.sqrt(TRUTH))
        return {name: scale * BATCH * value for name, value in GRADIENT.items()}
    return {name: BATCH * value.clamp(-rule.bounds[name], rule.bounds[name]) for name, value in GRADIENT.items()}


def simulated(
    prior: ReleasedPrior, *, noise_multiplier: float, steps: int = 320, bound_scale: float | None = 1.2
) -> list[float]:
    """The prior over the true squares after every step with a prior."""
    clip = AdaptiveClip(clip_norm=1.0, prior=prior, bound_scale=bound_scale)
    state, found = clip.start(GRADIENT), []
    for step in range(steps):
        rule = clip.rule(state, step)
        limits = rule.bounds if isinstance(rule, PerCoordinateClip) else None
        private = PrivateSum(values=clipped_to(rule), sensitivity=rule.sensitivity, bounds=limits)
        out = ProportionalNoise().release(
            private, noise_multiplier=noise_multiplier, randomness=KEY.at(step=step, attempt=0)
        )
        state = clip.learn(state, StepOutcome(released=out, divisor=BATCH, is_accepted=True))
        squares = prior.squares(state)
        if squares is not None:
            found.append(sum(float(square.sum()) for square in squares.values()) / TRUTH)
    return found


@dataclass(frozen=True, kw_only=True)
class NoiseAndAll(ReleasedPrior):
    """Squares of released means as they are."""

    def learn(self, state: ComponentState, released: ReleasedSum, *, divisor: float) -> ComponentState:
        return super().learn(state, replace(released, noise_std=0.0), divisor=divisor)


@pytest.mark.parametrize("bound_scale", [1.2, None])
@pytest.mark.parametrize("noise_multiplier", [8.0, 4.0, 2.0])
def test_noise_does_not_feed_itself_through_the_bounds(noise_multiplier: float, bound_scale: float | None) -> None:
    found = simulated(ReleasedPrior(), noise_multiplier=noise_multiplier, bound_scale=bound_scale)
    assert len(found) > 250
    assert 0.01 < min(found) < max(found) < 5


@pytest.mark.parametrize("noise_multiplier", [8.0, 4.0])
def test_without_subtracting_its_variance_noise_feeds_itself(noise_multiplier: float) -> None:
    assert max(simulated(NoiseAndAll(), noise_multiplier=noise_multiplier)) > 1e6


def released(*values: float, noise_std: float | dict[str, Tensor] = 0.0) -> ReleasedSum:
    return ReleasedSum(values={"weight": torch.tensor(values, dtype=torch.float64)}, noise_std=noise_std)


def rule_after(clip: AdaptiveClip, just: ReleasedSum, *, divisor: float = 1.0) -> Any:
    state = clip.start(just.values)
    assert clip.rule(state, 0) == FlatClip(clip.clip_norm)
    return clip.rule(clip.learn(state, StepOutcome(released=just, divisor=divisor, is_accepted=True)), 1)


def test_bounds_follow_the_prior_and_have_the_clip_norm_or_the_scale() -> None:
    rule = rule_after(AdaptiveClip(clip_norm=0.7, prior=ReleasedPrior()), released(3.0, 4.0, 12.0))
    assert rule.sensitivity == pytest.approx(0.7)
    assert rule.bounds["weight"].tolist() == pytest.approx([0.7 * part / 13 for part in (3, 4, 12)], rel=0.3)
    scaled = AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior(), bound_scale=1.5)
    rule = rule_after(scaled, released(6.0, 8.0), divisor=2.0)
    assert rule.bounds["weight"].tolist() == pytest.approx([4.5, 6.0])
    assert rule.sensitivity == pytest.approx(7.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 1e-200])
def test_a_prior_that_diverged_or_vanished_falls_back_to_the_flat_clip(value: float) -> None:
    assert rule_after(AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior()), released(value, value)) == FlatClip(4.0)


def test_a_released_prior_never_reads_a_private_sum() -> None:
    clip = AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior())
    state = clip.start({"weight": torch.zeros(2)})
    private = PrivateSum(values={"weight": torch.tensor([3.0, 1.0])}, sensitivity=1.0)
    assert clip.peek(state, private, divisor=1.0) is state
    assert clip.unproven is None


def test_a_raw_prior_distinguishes_neighbours_with_the_same_release() -> None:
    """One record more, hidden by noise that happens to fall the other way: the bounds of the next step differ."""
    clip = AdaptiveClip(clip_norm=4.0, prior=RawPrior(), bound_scale=1.2)
    taken = StepOutcome(released=released(2.5, 1.0, noise_std=1.0), divisor=2.0, is_accepted=True)

    def bounds_after(*values: float) -> list[float]:
        private = PrivateSum(values={"weight": torch.tensor(values)}, sensitivity=1.0)
        state = clip.peek(clip.start({"weight": torch.zeros(2)}), private, divisor=2.0)
        rule = clip.rule(clip.learn(state, taken), 1)
        assert isinstance(rule, PerCoordinateClip)
        return rule.bounds["weight"].tolist()

    assert bounds_after(3.0, 1.0) == pytest.approx([1.2 * math.sqrt(0.1) * 1.5, 1.2 * math.sqrt(0.1) * 0.5])
    assert bounds_after(3.0, 1.0)[0] != pytest.approx(bounds_after(2.0, 1.0)[0], rel=0.1)
    assert clip.unproven is not None


# --- A clip norm that follows a quantile ----------------------------------------------------------------------------


def records_of(*norms: float) -> Tensor:
    grads_BP = torch.zeros(len(norms), 5, dtype=torch.float64)
    grads_BP[:, 0] = torch.tensor(norms, dtype=torch.float64)
    return grads_BP


def counted(rule: QuantileRule, *norms: float) -> float:
    return float(rule(stored_gradients(records_of(*norms))).values[UNCLIPPED_COUNT]) / rule.count_weight


@pytest.mark.parametrize("share", [0.1, 0.6, 0.99])
def test_sum_and_count_are_one_release_with_the_noise_multiplier_of_the_plan(share: float) -> None:
    """Andrew et al. (2021, Theorem 1): z⁻² = z_sum⁻² + (2 σ_b)⁻², where the count has the sensitivity ½."""
    rule, z = QuantileRule(clip_norm=0.7, count_share=share), 1.3
    noise_std = z * rule.sensitivity
    of_sum, of_count = noise_std / rule.clip_norm, noise_std / rule.count_weight
    assert of_sum**-2 + (2 * of_count) ** -2 == pytest.approx(z**-2, rel=1e-12)
    assert of_count == pytest.approx(z / (2 * share))


def test_records_are_counted_about_one_half_and_without_a_jump() -> None:
    rule = QuantileRule(clip_norm=2.0, count_share=0.1)
    assert counted(rule, 1e-3, 1.0, 2.0) == pytest.approx(1.5)
    assert counted(rule, 2.0 * (1 + RAMP), 5.0, 1e9) == pytest.approx(-1.5)
    assert counted(rule, 2.0 * (1 + RAMP / 2)) == pytest.approx(0, abs=1e-9)
    # A norm that rounds to another neighbour of C hardly moves the count.
    assert counted(rule, 2.0) == pytest.approx(counted(rule, 2.0 * (1 + 1e-7)), abs=2e-6)
    masked = rule(stored_gradients(records_of(1.0, 1.0, 5.0), mask_B=torch.tensor([True, False, False])))
    assert float(masked.values[UNCLIPPED_COUNT]) / rule.count_weight == pytest.approx(0.5)


@pytest.mark.parametrize("target_quantile", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("clip_norm", [1e-3, 8.0])
def test_the_clip_norm_reaches_the_quantile_through_the_noise(clip_norm: float, target_quantile: float) -> None:
    norms = torch.linspace(0.01, 1, 100).tolist()
    clip = QuantileClip(clip_norm, target_quantile)
    state, reached = clip.start({}), []
    for step in range(300):
        rule = clip.rule(state, step)
        assert rule.clip_norm == state["clip_norm"]
        private = rule(stored_gradients(records_of(*norms)))
        noisy = IsotropicNoise().release(private, noise_multiplier=1.0, randomness=KEY.at(step, 0))
        state = clip.learn(state, StepOutcome(released=noisy, divisor=100.0, is_accepted=False))
        reached.append(float(state["clip_norm"]))
    assert sum(reached[150:]) / 150 == pytest.approx(target_quantile, rel=0.1)


def test_the_next_clip_norm_follows_from_released_values_alone() -> None:
    """Neighbours with the same release leave one state; the divisor is public, not the size of a draw."""
    clip = QuantileClip(2.0, target_quantile=0.7)
    rule, state = clip.rule(clip.start({}), 0), clip.start({})
    private = rule(stored_gradients(records_of(0.1, 50.0)))
    assert clip.peek(state, private, divisor=10.0) == state
    assert clip.unproven is None
    released = ReleasedSum(values={**private.values, UNCLIPPED_COUNT: torch.tensor(3 * rule.count_weight)})
    learnt = clip.learn(state, StepOutcome(released=released, divisor=10.0, is_accepted=True))
    assert learnt == {"clip_norm": pytest.approx(2.0 * math.exp(-0.2 * (0.3 + 0.5 - 0.7)))}


def test_the_clip_norm_stays_within_its_limits_whatever_was_released() -> None:
    clip = QuantileClip(1.0, smallest=0.5, largest=3.0)
    for count, expected in ((1e300, 0.5), (-1e300, 3.0)):
        released = ReleasedSum(values={UNCLIPPED_COUNT: torch.tensor(count, dtype=torch.float64)})
        assert clip.learn(clip.start({}), StepOutcome(released=released, divisor=1.0, is_accepted=True)) == {
            "clip_norm": expected
        }


def test_a_quantile_is_for_its_own_clip_which_has_no_schedule() -> None:
    assert clipping_by_name("quantile", 0.3) == QuantileClip(0.3)
    assert clipping_by_name("flat", 0.3) == FlatClip(0.3)
    for name, wrong in (
        ("target_quantile", {"name": "flat", "target_quantile": 0.5}),
        ("clip_schedule", {"name": "quantile", "schedule": HALVED}),
        ("clip", {"name": "median"}),
    ):
        with pytest.raises(InvalidValue, match=f"^{name} "):
            clipping_by_name(clip_norm=1.0, **wrong)


# --- Priors ---------------------------------------------------------------------------------------------------------


def squares(prior: Prior, *sums: ReleasedSum, divisor: float = 1.0) -> list[float] | None:
    state = prior.start({"weight": torch.zeros(len(sums[0].values["weight"]))})
    for each in sums:
        state = prior.learn(state, each, divisor=divisor)
    found = prior.squares(state)
    return None if found is None else found["weight"].tolist()


def test_squares_are_unbiased_since_the_variance_of_the_noise_is_subtracted() -> None:
    """The mean over many coordinates of one gradient, under noise far above it."""
    prior, gradient, std, like = ReleasedPrior(memory=0.9), 0.3, 1.0, {"weight": torch.zeros(20_000)}
    noises = [KEY.at(step=step, attempt=0).normals("noise", like)["weight"] for step in range(40)]
    sums = [ReleasedSum(values={"weight": 5 * (gradient + std * noise)}, noise_std=5 * std) for noise in noises]
    found = squares(prior, *sums, divisor=5.0)
    assert found is not None
    # Of one step the mean over coordinates is off by √(2 + 4·0.09) / √20000 = 0.011; the running mean has a quarter.
    assert sum(found) / len(found) == pytest.approx(gradient**2, abs=0.012)
    assert abs(sum(found) / len(found) - gradient**2 - std**2) > 0.9


def test_increments_below_zero_count_and_each_coordinate_has_its_own_noise() -> None:
    prior = ReleasedPrior(memory=0.5, significance=0.0)
    high, low = released(2.0, 2.0, noise_std=1.0), released(0.0, 0.0, noise_std=1.0)
    # 4 - 1 and 0 - 1: by weights of a quarter and a half, over three quarters.
    assert squares(prior, high, low) == pytest.approx([(0.25 * 3 - 0.5 * 1) / 0.75] * 2)
    assert squares(prior, low, low) is None
    stds = {"weight": torch.tensor([1.0, 3.0, 1e-3])}
    state = prior.learn(prior.start({"weight": torch.zeros(3)}), released(3.0, 3.1, 0.0, noise_std=stds), divisor=1.0)
    means = state["square/weight"]
    assert isinstance(means, Tensor)
    assert means.tolist() == pytest.approx([0.5 * (9 - 1), 0.5 * (3.1**2 - 9), -0.5e-6])


def test_spread_that_noise_explains_is_shared_and_zeros_are_floored() -> None:
    exact = squares(ReleasedPrior(memory=0.9, least_share=0.1), released(4.0, 0.0, 2.0), divisor=2.0)
    assert exact == pytest.approx([4, 0.1 * (4 + 0 + 1) / 3, 1])
    prior = ReleasedPrior(memory=0.9, significance=0.0)
    drowned = squares(prior, released(3.0, 2.5, 2.0, noise_std=1.4))
    assert drowned == pytest.approx([(9 + 6.25 + 4) / 3 - 1.96] * 3)
    assert squares(prior, released(3.0, 2.0, 1.0, noise_std=0.01)) == pytest.approx([9, 4, 1], rel=0.01)


def test_a_prior_that_noise_could_explain_is_none() -> None:
    """One measurement of a coordinate: g² - s² has the standard error √2 s² where nothing was known before."""
    cautious, bold = ReleasedPrior(significance=3.0), ReleasedPrior(significance=1.0)
    within, beyond = (released(math.sqrt(1 + error * math.sqrt(2)), noise_std=1.0) for error in (2.9, 3.1))
    assert squares(cautious, within) is None
    assert squares(cautious, beyond) is not None
    assert squares(bold, within) is not None
    weak, weak_but_many = released(1.9, noise_std=1.0), released(*[1.9] * 10, noise_std=1.0)
    assert squares(cautious, weak) is None
    assert squares(cautious, weak_but_many) is not None
    assert squares(cautious, *[weak] * 20) is not None


def test_a_raw_prior_is_none_while_its_roots_are_alike() -> None:
    prior = RawPrior(memory=0.5, least_variance=1e-6)
    state = prior.start({"weight": torch.zeros(2)})
    assert prior.squares(state) is None
    alike, apart = (
        PrivateSum(values={"weight": torch.tensor([1.0, other])}, sensitivity=1.0) for other in (1.001, 0.0)
    )
    assert prior.squares(prior.peek(state, alike, divisor=1.0)) is None
    found = prior.squares(prior.peek(state, apart, divisor=1.0))
    assert found is not None
    assert found["weight"].tolist() == pytest.approx([0.5, 1e-30])
