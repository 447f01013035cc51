"""Priors: what released sums, or in one paper raw ones, say about the size of gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lehr.clipping.prior import RawPrior, ReleasedPrior
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.rng import RunKey
from tests.clipping.released_sums import learnt, released

KEY = RunKey(bytes(range(32)))


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
