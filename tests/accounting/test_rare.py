"""Composition of steps that rarely sample a record, against exact profiles and other compositions."""

from __future__ import annotations

import time

import mpmath
import pytest

from lehr.accounting import rare
from lehr.accounting.accountant import bound
from lehr.accounting.pld import PLD
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.accounting.rare import repeated
from lehr.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


def _hockey_stick(epsilon: float, probability: float, sigma: float, removing: bool) -> mpmath.mpf:
    """δ of one step at ε, in 50 digits."""
    with mpmath.workdps(50):
        q, s, e = mpmath.mpf(probability), mpmath.mpf(sigma), mpmath.mpf(epsilon)
        odds = 1 + mpmath.expm1(e if removing else -e) / q
        if odds <= 0:
            return mpmath.mpf(0)
        threshold, side = s**2 * mpmath.log(odds) + 0.5, -1 if removing else 1
        absent, present = mpmath.ncdf(side * threshold / s), mpmath.ncdf(side * (threshold - 1) / s)
        mixture = (1 - q) * absent + q * present
        return mixture - mpmath.exp(e) * absent if removing else absent - mpmath.exp(e) * mixture


@pytest.mark.parametrize("probability", [1e-3, 1e-6, 1e-9, 1e-14, 1e-19])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("share", [1e-6, 1e-3, 0.1])
def test_one_step_is_never_below_its_exact_profile_and_close_to_it(
    probability: float, sigma: float, share: float
) -> None:
    delta = share * probability / sigma
    found = PLD.epsilon(PoissonSampled(probability, Gaussian(sigma)), delta=delta, adjacency=ADD_OR_REMOVE)
    exact = [_hockey_stick(found, probability, sigma, removing) for removing in (True, False)]
    assert max(exact) <= delta
    assert max(_hockey_stick(found * 0.997, probability, sigma, removing) for removing in (True, False)) > delta


def _two_steps(epsilon: float, probability: float, sigma: float) -> float:
    """δ of two steps, when the record is removed: the profile of one, integrated over the loss of the other."""

    def inner(x: float) -> mpmath.mpf:
        ratio = 1 - probability + probability * mpmath.exp((2 * x - 1) / (2 * sigma**2))
        left = epsilon - mpmath.log(ratio)
        return ratio * mpmath.npdf(x, 0, sigma) * _signed_profile(left, probability, sigma)

    with mpmath.workdps(30):
        return float(mpmath.quad(inner, [i * sigma for i in range(-12, 13)] + [1 + 12 * sigma]))


def _signed_profile(epsilon: mpmath.mpf, probability: float, sigma: float) -> mpmath.mpf:
    q, s = mpmath.mpf(probability), mpmath.mpf(sigma)
    odds = 1 + mpmath.expm1(epsilon) / q
    if odds <= 0:
        return -mpmath.expm1(epsilon)
    threshold = s**2 * mpmath.log(odds) + 0.5
    absent, present = mpmath.ncdf(-threshold / s), mpmath.ncdf((1 - threshold) / s)
    return (1 - q) * absent + q * present - mpmath.exp(epsilon) * absent


@pytest.mark.parametrize("probability, sigma, delta", [(1e-6, 0.76, 4e-7), (1e-8, 1.6, 9e-10), (1e-5, 20.0, 1e-10)])
def test_two_steps_at_a_tiny_epsilon_are_tight(probability: float, sigma: float, delta: float) -> None:
    event = Repeated(PoissonSampled(probability, Gaussian(sigma)), 2)
    found = bound(event, delta=delta).epsilon
    assert _two_steps(found, probability, sigma) <= delta * (1 + 1e-9)
    assert _two_steps(found * 0.997, probability, sigma) > delta


@pytest.mark.parametrize("count", [1, 3, 700])
def test_it_agrees_with_the_transform_where_both_are_precise(count: int) -> None:
    step = PoissonSampled(1e-4, Gaussian(1.5))
    loss, delta = {}, 1e-9
    for direction in Direction:
        loss[direction] = SampledGaussianLoss(
            sampling_probability=1e-4, noise_multiplier=1.5, direction=direction, delta=delta
        )
    found = max(repeated([(loss[way], 1)], delta=delta, most=count)(count) for way in Direction)
    unused = Repeated(PoissonSampled(1.0, Gaussian(1e9)), 1)  # one use of every record: the transform composes
    by_transform = PLD.epsilon(Composed((Repeated(step, count), unused)), delta=delta, adjacency=ADD_OR_REMOVE)
    assert by_transform * (1 - 2e-5) <= found <= by_transform * 1.004


def test_different_steps_cost_more_than_either_and_no_more_than_the_worse_one_as_often() -> None:
    quiet, loud = PoissonSampled(1e-7, Gaussian(0.8)), PoissonSampled(2e-7, Gaussian(1.4))
    both = bound(Composed((Repeated(quiet, 30), Repeated(loud, 50))), delta=1e-10).epsilon
    assert both > max(bound(Repeated(quiet, 30), delta=1e-10).epsilon, bound(Repeated(loud, 50), delta=1e-10).epsilon)
    worse = PoissonSampled(2e-7, Gaussian(0.8))
    assert both < bound(Repeated(worse, 80), delta=1e-10).epsilon


@pytest.mark.parametrize(
    "steps, probability, sigma, delta", [(10**7, 1.7e-15, 190.0, 9e-9), (10**6, 3e-13, 1.0, 3e-15)]
)
def test_a_tiny_probability_has_a_small_epsilon_at_once(
    steps: int, probability: float, sigma: float, delta: float
) -> None:
    started = time.process_time()
    assert bound(Repeated(PoissonSampled(probability, Gaussian(sigma)), steps), delta=delta).epsilon < 1e-8
    assert time.process_time() - started < 20


@pytest.mark.parametrize("limit, value", [("LARGEST_LOSS", 2.0), ("LARGEST_LOSS", 4.0), ("_NEGLIGIBLE", 0.1)])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_masses_that_are_left_out_are_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float, count: int
) -> None:
    event, delta = Repeated(PoissonSampled(1e-4, Gaussian(0.5)), count), 1e-6
    whole = PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE)
    monkeypatch.setattr(rare, limit, value)
    assert PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE) >= whole * (1 - 1e-4)
