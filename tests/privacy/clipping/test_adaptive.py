"""ADADP's bounds: what they follow, and that noise does not feed itself through them.

In the simulations every record has the same gradient, so that its mean is known, and the noise over the squares is that
of a network of 70,000 parameters with batches of 600.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, StepOutcome
from lehr.privacy.clipping import AdaptiveClip, FlatClip, PerCoordinateClip, RawPrior, ReleasedPrior
from lehr.privacy.noise import ProportionalNoise
from lehr.privacy.rng import RunKey
from tests.privacy.clipping.released_sums import learnt, released

KEY = RunKey(bytes(range(32)))
MADE = torch.Generator().manual_seed(0)
COUNT = 500
GRADIENT = {
    "large": 0.01 * torch.randn(COUNT, generator=MADE, dtype=torch.float64).exp(),
    "small": 0.002 * torch.randn(COUNT, generator=MADE, dtype=torch.float64),
}
NUM_COORDINATES = sum(value.numel() for value in GRADIENT.values())
BATCH = 600 * math.sqrt(NUM_COORDINATES / 70_000)
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
    """The prior over the true squares after every step, wherever it says anything."""
    clip = AdaptiveClip(clip_norm=1.0, prior=prior, bound_scale=bound_scale)
    state, found = clip.start(GRADIENT), []
    for step in range(steps):
        rule = clip.rule(state, step)
        bounds = rule.bounds if isinstance(rule, PerCoordinateClip) else None
        private = PrivateSum(values=clipped_to(rule), sensitivity=rule.sensitivity, bounds=bounds)
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

    def learn(self, state: SlotState, released: ReleasedSum, *, divisor: float) -> SlotState:
        return super().learn(state, replace(released, noise_std=0.0), divisor=divisor)


@pytest.mark.parametrize("bound_scale", [1.2, None])
@pytest.mark.parametrize("noise_multiplier", [8.0, 4.0, 2.0])
def test_noise_does_not_feed_itself_through_the_bounds(noise_multiplier: float, bound_scale: float | None) -> None:
    found = simulated(ReleasedPrior(), noise_multiplier=noise_multiplier, bound_scale=bound_scale)
    assert len(found) > 250
    assert max(found) < 5
    assert min(found) > 0.01


@pytest.mark.parametrize("noise_multiplier", [8.0, 4.0])
def test_without_taking_the_noise_away_it_would(noise_multiplier: float) -> None:
    assert max(simulated(NoiseAndAll(), noise_multiplier=noise_multiplier)) > 1e6


def test_all_bounds_together_have_the_clip_norm_and_the_proportions_of_the_prior() -> None:
    clip = AdaptiveClip(clip_norm=0.7, prior=ReleasedPrior())
    released = ReleasedSum(values={"weight": torch.tensor([3.0, 4.0, 12.0])}, noise_std=0.0)
    state = clip.learn(clip.start(released.values), StepOutcome(released=released, divisor=1.0, is_accepted=True))
    rule = clip.rule(state, 1)
    assert isinstance(rule, PerCoordinateClip)
    assert rule.sensitivity == pytest.approx(0.7)
    assert rule.bounds["weight"].tolist() == pytest.approx([0.7 * part / 13 for part in (3, 4, 12)], rel=0.3)


def test_bounds_are_the_scale_times_the_root_of_the_prior_and_flat_before_anything_is_known() -> None:
    clip = AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior(), bound_scale=1.5)
    state = clip.start({"weight": torch.zeros(2)})
    assert clip.rule(state, 0) == FlatClip(4.0)
    state = clip.learn(state, StepOutcome(released=released(6.0, 8.0), divisor=2.0, is_accepted=True))
    rule = clip.rule(state, 1)
    assert isinstance(rule, PerCoordinateClip)
    assert rule.bounds["weight"].tolist() == pytest.approx([4.5, 6.0])
    assert rule.sensitivity == pytest.approx(7.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 1e-200])
def test_a_prior_that_has_diverged_or_vanished_falls_back_to_the_flat_clip(value: float) -> None:
    clip = AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior())
    state = clip.start({"weight": torch.zeros(2)})
    taken = StepOutcome(released=released(value, value), divisor=1.0, is_accepted=True)
    assert clip.rule(clip.learn(state, taken), 1) == FlatClip(4.0)


def test_a_prior_from_released_sums_never_looks_at_a_private_one() -> None:
    clip = AdaptiveClip(clip_norm=4.0, prior=ReleasedPrior())
    state = clip.start({"weight": torch.zeros(2)})
    private = PrivateSum(values={"weight": torch.tensor([3.0, 1.0])}, sensitivity=1.0)
    assert clip.peek(state, private, divisor=1.0) is state
    assert clip.unproven is None


def test_a_raw_prior_tells_neighbours_apart_although_the_same_was_released() -> None:
    """One record more, hidden by noise that happens to fall the other way: the bounds of the next step differ."""
    clip = AdaptiveClip(clip_norm=4.0, prior=RawPrior(), bound_scale=1.2)
    with_record, without = torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0])
    taken = StepOutcome(released=released(2.5, 1.0, noise_std=1.0), divisor=2.0, is_accepted=True)

    def bounds_after(values: Tensor) -> list[float]:
        state = clip.start({"weight": torch.zeros(2)})
        state = clip.peek(state, PrivateSum(values={"weight": values}, sensitivity=1.0), divisor=2.0)
        rule = clip.rule(clip.learn(state, taken), 1)
        assert isinstance(rule, PerCoordinateClip)
        return rule.bounds["weight"].tolist()

    assert bounds_after(with_record) == pytest.approx([1.2 * math.sqrt(0.1) * 1.5, 1.2 * math.sqrt(0.1) * 0.5])
    assert bounds_after(with_record)[0] != pytest.approx(bounds_after(without)[0], rel=0.1)
    assert clip.unproven is not None


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_norm_or_scale_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="clip_norm"):
        AdaptiveClip(clip_norm=wrong, prior=ReleasedPrior())
    with pytest.raises(InvalidValue, match="bound_scale"):
        AdaptiveClip(clip_norm=1.0, prior=ReleasedPrior(), bound_scale=wrong)


def test_the_squares_are_unbiased_since_the_known_noise_is_taken_away() -> None:
    """The mean over many coordinates of one gradient, under noise far above it."""
    prior, gradient, std = ReleasedPrior(memory=0.9), 0.3, 1.0
    state = prior.start({"weight": torch.zeros(20_000)})
    for step in range(40):
        noise = KEY.at(step=step, attempt=0).normals("noise", {"weight": torch.zeros(20_000)})["weight"]
        state = prior.learn(
            state, ReleasedSum(values={"weight": 5 * (gradient + std * noise)}, noise_std=5 * std), divisor=5.0
        )
    squares = prior.squares(state)
    assert squares is not None
    # Of one step the mean over coordinates is off by √(2 + 4·0.09) / √20000 = 0.011; the running mean has a quarter.
    assert float(squares["weight"].mean()) == pytest.approx(gradient**2, abs=0.012)
    assert abs(float(squares["weight"].mean()) - gradient**2 - std**2) > 0.9


def test_an_increment_below_zero_counts_as_what_it_is() -> None:
    prior = ReleasedPrior(memory=0.5, significance=0.0)
    high, low = released(2.0, 2.0, noise_std=1.0), released(0.0, 0.0, noise_std=1.0)
    state = learnt(prior, high, low)
    # 4 - 1 and 0 - 1: by weights of a quarter and a half, over three quarters.
    squares = prior.squares(state)
    assert squares is not None
    assert squares["weight"].tolist() == pytest.approx([(0.25 * 3 - 0.5 * 1) / 0.75] * 2)
    assert prior.squares(learnt(prior, low, low)) is None


def test_noise_of_each_coordinate_is_taken_away_by_itself() -> None:
    prior = ReleasedPrior(memory=0.5, least_share=0.01)
    stds = {"weight": torch.tensor([1.0, 3.0, 1e-3])}
    state = learnt(prior, released(3.0, 3.1, 0.0, noise_std=stds))
    means = state["square/weight"]
    assert isinstance(means, Tensor)
    assert means.tolist() == pytest.approx([0.5 * (9 - 1), 0.5 * (3.1**2 - 9), -0.5e-6])


def test_a_single_exact_measurement_gives_its_squares_and_the_floor_keeps_zeros_above_zero() -> None:
    prior = ReleasedPrior(memory=0.9, least_share=0.1)
    squares = prior.squares(learnt(prior, released(4.0, 0.0, 2.0), divisor=2.0))
    assert squares is not None
    mean = (4 + 0 + 1) / 3
    assert squares["weight"].tolist() == pytest.approx([4, 0.1 * mean, 1])


def test_spread_that_noise_explains_is_shared_and_spread_beyond_it_is_kept() -> None:
    prior = ReleasedPrior(memory=0.9, significance=0.0)
    drowned = prior.squares(learnt(prior, released(3.0, 2.5, 2.0, noise_std=1.4)))
    clear = prior.squares(learnt(prior, released(3.0, 2.0, 1.0, noise_std=0.01)))
    assert drowned is not None
    assert clear is not None
    assert drowned["weight"].tolist() == pytest.approx([(9 + 6.25 + 4) / 3 - 1.96] * 3)
    assert clear["weight"].tolist() == pytest.approx([9, 4, 1], rel=0.01)


def test_a_prior_that_noise_could_explain_says_nothing() -> None:
    """One measurement of a coordinate: g² - s² has the standard error √2 s² where nothing was known before."""
    cautious, bold = ReleasedPrior(significance=3.0), ReleasedPrior(significance=1.0)
    within, beyond = (released(math.sqrt(1 + error * math.sqrt(2)), noise_std=1.0) for error in (2.9, 3.1))
    assert cautious.squares(learnt(cautious, within)) is None
    assert cautious.squares(learnt(cautious, beyond)) is not None
    assert bold.squares(learnt(bold, within)) is not None


def test_many_coordinates_and_many_steps_make_a_weak_signal_significant() -> None:
    prior = ReleasedPrior(memory=0.99, significance=3.0)
    one, many = [1.9], [1.9] * 10
    assert prior.squares(learnt(prior, released(*one, noise_std=1.0))) is None
    assert prior.squares(learnt(prior, released(*many, noise_std=1.0))) is not None
    assert prior.squares(learnt(prior, *[released(*one, noise_std=1.0)] * 20)) is not None


def test_a_raw_prior_says_nothing_while_all_its_roots_are_alike() -> None:
    prior = RawPrior(memory=0.5, least_variance=1e-6)
    state = prior.start({"weight": torch.zeros(2)})
    assert prior.squares(state) is None
    alike = PrivateSum(values={"weight": torch.tensor([1.0, 1.001])}, sensitivity=1.0)
    assert prior.squares(prior.peek(state, alike, divisor=1.0)) is None
    apart = PrivateSum(values={"weight": torch.tensor([1.0, 0.0])}, sensitivity=1.0)
    squares = prior.squares(prior.peek(state, apart, divisor=1.0))
    assert squares is not None
    assert squares["weight"].tolist() == pytest.approx([0.5, 1e-30])


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, math.nan])
def test_settings_out_of_range_are_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="memory"):
        ReleasedPrior(memory=wrong)
    with pytest.raises(InvalidValue, match="memory"):
        RawPrior(memory=wrong)
    with pytest.raises(InvalidValue, match="least_share"):
        ReleasedPrior(least_share=wrong)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_a_significance_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="significance"):
        ReleasedPrior(significance=wrong)
