"""Where the deciding losses lie."""

from __future__ import annotations

import math
import time

import mpmath
import numpy as np
import pytest
from scipy import signal

from lehr.accounting import composition, privacy_loss
from lehr.accounting.accountant import bound
from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.composition import Parts, Window, compose_by_pairs
from lehr.accounting.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated
from lehr.accounting.pld import PLD
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss


def _gaussian(sigma: float, delta: float) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=1.0, noise_multiplier=sigma, direction=Direction.REMOVE, delta=delta
    )


def test_the_tilt_is_the_best_renyi_order_minus_one() -> None:
    sigma, delta = 4.0, 1e-6
    window = Window([(_gaussian(sigma, delta), 1)], delta=delta, fewest=1, most=1)
    best = sigma * math.sqrt(-2 * math.log(delta))  # for Gaussian noise, from the derivative of the Rényi bound
    assert window.tilt == pytest.approx(best, rel=0.06)


def test_the_tilted_losses_lie_inside() -> None:
    sigma, delta, steps = 10.0, 1e-6, 50
    window = Window([(_gaussian(sigma, delta), 1)], delta=delta, fewest=steps, most=steps)
    mean = steps * (0.5 + window.tilt) / sigma**2
    deviation = math.sqrt(steps) / sigma
    assert window.low == pytest.approx(mean - 6.8 * deviation, abs=0.3 * deviation)
    assert window.high == pytest.approx(mean + 6.8 * deviation, abs=0.3 * deviation)


def test_a_range_of_repeats_is_framed_from_the_fewest_to_the_most() -> None:
    parts = [(_gaussian(10.0, 1e-6), 1)]
    whole = Window(parts, delta=1e-6, fewest=50, most=100)
    top = Window(parts, delta=1e-6, fewest=100, most=100)
    assert whole.low < top.low
    assert whole.high == top.high


def _loss(probability: float, sigma: float, delta: float, direction: Direction) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=probability, noise_multiplier=sigma, direction=direction, delta=delta
    )


def _epsilon(parts: Parts, *, delta: float, tolerance: float) -> float:
    return composition.compose_by_transform(parts, delta=delta, tolerance=tolerance, fewest=1, most=1)(1)


def _unsampled_settings() -> list[tuple[float, int, float]]:
    random = np.random.default_rng(11)
    logs = random.uniform(np.log([0.3, 1, 1e-12]), np.log([1000, 10**7, 0.1]), (40, 3))
    return [(sigma, round(steps), delta) for sigma, steps, delta in np.exp(logs).tolist()]


@pytest.mark.parametrize("direction", Direction)
def test_unsampled_steps_agree_with_the_closed_form_and_are_never_below_it(direction: Direction) -> None:
    for sigma, steps, delta in _unsampled_settings():
        found = _epsilon([(_loss(1.0, sigma, delta, direction), steps)], delta=delta, tolerance=1e-5)
        truth = gaussian_epsilon(steps / sigma**2, delta=delta)
        assert truth * (1 - 2e-9) - 1e-11 <= found <= truth * (1 + 5e-4) + 1e-9, (sigma, steps, delta)


@pytest.mark.parametrize("direction", Direction)
def test_two_different_steps_compose_as_their_convolution_does(direction: Direction) -> None:
    delta, spacing = 1e-4, 2.0**-13
    parts = [(_loss(0.2, 0.9, delta, direction), 2), (_loss(0.05, 0.6, delta, direction), 1)]
    grids = [loss.on_grid(spacing) for loss, count in parts for _ in range(count)]
    masses, first = np.ones(1), 0
    for grid in grids:
        masses, first = signal.fftconvolve(masses, grid.masses), first + grid.first
    losses = (first + np.arange(len(masses))) * spacing
    infinite = 1 - math.prod(1 - grid.infinite_mass for grid in grids)

    def hockey_stick(epsilon: float) -> float:
        return float(np.maximum(-np.expm1(epsilon - losses), 0) @ masses) + infinite

    found = _epsilon(parts, delta=delta, tolerance=1e-7)
    assert hockey_stick(found) == pytest.approx(delta, rel=1e-3)


def test_a_range_of_repeats_gives_the_same_as_each_alone() -> None:
    delta = 1e-5
    loss = _loss(0.01, 1.1, delta, Direction.REMOVE)
    many = composition.compose_by_transform([(loss, 1)], delta=delta, tolerance=1e-5, fewest=100, most=200)
    for repeats in (100, 133, 200):
        alone = _epsilon([(loss, repeats)], delta=delta, tolerance=1e-5)
        assert many(repeats) == pytest.approx(alone, rel=1e-4)


def test_a_tiny_delta_keeps_its_precision() -> None:
    sigma, steps, delta = 30.0, 10**6, 1e-12
    found = _epsilon([(_loss(1.0, sigma, delta, Direction.ADD), steps)], delta=delta, tolerance=1e-6)
    assert found == pytest.approx(gaussian_epsilon(steps / sigma**2, delta=delta), rel=1e-4)


def test_a_finer_tolerance_never_raises_epsilon_by_much() -> None:
    loss = _loss(0.05, 0.8, 1e-6, Direction.REMOVE)
    coarse, fine = (_epsilon([(loss, 300)], delta=1e-6, tolerance=tolerance) for tolerance in (1e-2, 1e-6))
    assert fine <= coarse * (1 + 1e-9)
    assert coarse <= fine * 1.02


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("tail", [0.9, 0.1])
def test_a_window_that_is_too_narrow_makes_epsilon_larger_and_never_smaller(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, tail: float
) -> None:
    """The mass beyond it has to be counted as lost."""
    for module in (composition, composition):
        monkeypatch.setattr(module, "LOG_TILTED_TAIL", math.log(tail))
    for sigma, steps, delta in ((1.0, 40, 1e-2), (2.0, 200, 1e-5), (3.0, 200, 1e-5)):
        found = _epsilon([(_loss(1.0, sigma, delta, direction), steps)], delta=delta, tolerance=1e-5)
        assert found >= gaussian_epsilon(steps / sigma**2, delta=delta) * (1 - 2e-9), (sigma, steps, delta)


@pytest.mark.parametrize("direction", Direction)
def test_masses_that_the_grid_calls_infinitely_lossy_are_counted(
    monkeypatch: pytest.MonkeyPatch, direction: Direction
) -> None:
    monkeypatch.setattr(privacy_loss, "_LOG_TAIL_PER_DELTA", -5.0)
    for sigma, steps, delta in ((2.0, 10, 1e-5), (5.0, 50, 1e-3), (1.0, 3, 1e-8)):
        found = _epsilon([(_loss(1.0, sigma, delta, direction), steps)], delta=delta, tolerance=1e-5)
        assert found >= gaussian_epsilon(steps / sigma**2, delta=delta) * (1 - 2e-9), (sigma, steps, delta)


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
    found = max(compose_by_pairs([(loss[way], 1)], delta=delta, most=count)(count) for way in Direction)
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


@pytest.mark.parametrize(
    "limit, value", [("LARGEST_PAIRED_LOSS", 2.0), ("LARGEST_PAIRED_LOSS", 4.0), ("_NEGLIGIBLE", 0.1)]
)
@pytest.mark.parametrize("count", [1, 2, 50])
def test_masses_that_are_left_out_are_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float, count: int
) -> None:
    event, delta = Repeated(PoissonSampled(1e-4, Gaussian(0.5)), count), 1e-6
    whole = PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE)
    monkeypatch.setattr(composition, limit, value)
    assert PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE) >= whole * (1 - 1e-4)
