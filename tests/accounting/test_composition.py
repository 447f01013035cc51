"""The loss of one step, exactly and on a grid, and the composition of many."""

from __future__ import annotations

import math
import time
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, signal, stats

from lehr.accounting import composition, privacy_loss
from lehr.accounting.accountant import bound
from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.composition import Parts, Window, compose_by_pairs
from lehr.accounting.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated
from lehr.accounting.pld import PLD
from lehr.accounting.privacy_loss import Direction, GridLoss, RandomisedResponseLoss, SampledGaussianLoss
from tests.accounting.settings import exact_profile

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE
SETTINGS = [(0.01, 1.1), (0.3, 0.5), (1.0, 2.0), (1e-6, 0.3), (0.9, 50.0)]
each_direction = pytest.mark.parametrize("direction", Direction)


def loss_of(
    probability: float, sigma: float, direction: Direction = Direction.REMOVE, delta: float = 1e-6
) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=probability, noise_multiplier=sigma, direction=direction, delta=delta
    )


def hockey_stick(grid: GridLoss, epsilon: float) -> float:
    return float(np.maximum(-np.expm1(np.minimum(epsilon - grid.losses, 0)), 0) @ grid.masses) + grid.infinite_mass


@pytest.mark.parametrize("probability, sigma", SETTINGS)
@each_direction
def test_a_grid_is_never_below_the_true_hockey_stick(probability: float, sigma: float, direction: Direction) -> None:
    for spacing in (0.5, 0.01):
        grid = loss_of(probability, sigma, direction).on_grid(spacing)
        for epsilon in (0.0, 0.1, 0.333, 1.0, 2.9):
            exact = exact_profile(probability, sigma, direction, epsilon)
            assert hockey_stick(grid, epsilon) >= exact * (1 - 1e-9) - 1e-15


def test_a_finer_grid_comes_closer() -> None:
    truth = exact_profile(0.1, 1.0, Direction.REMOVE, 0.333)
    coarse, fine = (hockey_stick(loss_of(0.1, 1.0).on_grid(spacing), 0.333) - truth for spacing in (0.1, 0.01))
    assert coarse > 50 * fine > 0


@given(
    probability=st.floats(1e-7, 1.0),
    log_sigma=st.floats(math.log(0.3), math.log(1000)),
    direction=st.sampled_from(Direction),
    log_spacing=st.floats(-8, 1),
)
def test_a_grid_keeps_all_mass_and_never_lowers_the_losses(
    probability: float, log_sigma: float, direction: Direction, log_spacing: float
) -> None:
    loss = loss_of(probability, math.exp(log_sigma), direction)
    grid = loss.on_grid(max(math.exp(log_spacing), (loss.largest - loss.smallest) / 1e5))
    assert np.all(grid.masses >= 0)
    assert math.fsum(grid.masses) + grid.infinite_mass == pytest.approx(1, abs=1e-12)
    # E[e^(−loss)] is the other neighbour's total probability: above one would mean losses that are too small
    assert math.fsum(grid.masses * np.exp(-grid.losses)) <= 1 + 1e-12


@pytest.mark.parametrize("probability, sigma", SETTINGS)
@pytest.mark.parametrize("tilt", [0.5, 1.5])
def test_log_moments_are_those_of_the_densities(probability: float, sigma: float, tilt: float) -> None:
    def integrand(x: float) -> float:
        ratio = 1 - probability + probability * math.exp((2 * x - 1) / (2 * sigma**2))
        return float(stats.norm.pdf(x, 0, sigma) * ratio ** (1 + tilt))

    edges = np.linspace(-12 * sigma, 1 + tilt + 12 * sigma, 80)
    truth = sum(integrate.quad(integrand, a, b)[0] for a, b in pairwise(edges))
    found = loss_of(probability, sigma, delta=1e-12).log_moment(tilt)
    assert found == pytest.approx(math.log(truth), rel=1e-4, abs=1e-9)


def test_removing_and_adding_differ() -> None:
    removing, adding = (loss_of(0.1, 0.7, direction) for direction in Direction)
    assert removing.largest > 5 > adding.largest
    assert adding.largest == pytest.approx(-math.log(0.9), rel=1e-6)


@pytest.mark.parametrize("tilt", [-0.5, 0.0, 1.0, 30.0])
def test_moments_of_randomised_response_are_those_of_two_outcomes(tilt: float) -> None:
    loss = RandomisedResponseLoss(0.7)
    masses, losses = np.array([1.0, math.exp(-0.7)]) / (1 + math.exp(-0.7)), np.array([0.7, -0.7])
    tilted = masses * np.exp(tilt * losses)
    assert loss.log_moment(tilt) == pytest.approx(math.log(tilted.sum()), rel=1e-12, abs=1e-15)
    law = tilted / tilted.sum()
    assert loss.variance(tilt) == pytest.approx(law @ losses**2 - (law @ losses) ** 2, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-5, 0.25, 0.3, 5.0])
@pytest.mark.parametrize("spacing", [2.0**-2, 2.0**-7])
def test_a_grid_dominates_randomised_response_and_keeps_both_probabilities(epsilon: float, spacing: float) -> None:
    grid = RandomisedResponseLoss(epsilon).on_grid(spacing)
    assert grid.masses.sum() == pytest.approx(1, rel=1e-14)
    assert grid.masses @ np.exp(-grid.losses) == pytest.approx(1, rel=1e-13)
    true = 1 / (1 + math.exp(-epsilon))
    for level in np.linspace(-6, 6, 97).tolist():
        exact = max(true * -math.expm1(level - epsilon), 0.0) + max((1 - true) * -math.expm1(level + epsilon), 0.0)
        assert hockey_stick(grid, level) >= exact - 1e-15
    assert np.count_nonzero(grid.masses) <= (2 if epsilon % spacing == 0 else 4)  # on the grid, it is kept exactly


# Composition by a transform


def test_the_tilt_is_the_best_renyi_order_minus_one_and_the_tilted_losses_lie_inside() -> None:
    sigma, delta, steps = 10.0, 1e-6, 50
    window = Window([(loss_of(1.0, sigma), 1)], delta=delta, fewest=steps, most=steps)
    # for Gaussian noise, from the derivative of the Rényi bound
    assert window.tilt == pytest.approx(sigma * math.sqrt(-2 * math.log(delta) / steps), rel=0.06)
    mean, deviation = steps * (0.5 + window.tilt) / sigma**2, math.sqrt(steps) / sigma
    assert window.low == pytest.approx(mean - 6.8 * deviation, abs=0.3 * deviation)
    assert window.high == pytest.approx(mean + 6.8 * deviation, abs=0.3 * deviation)
    wider = Window([(loss_of(1.0, sigma), 1)], delta=delta, fewest=steps // 2, most=steps)
    assert wider.low < window.low
    assert wider.high == window.high


def by_transform(parts: Parts, *, delta: float, tolerance: float = 1e-5) -> float:
    return composition.compose_by_transform(parts, delta=delta, tolerance=tolerance, fewest=1, most=1)(1)


@each_direction
def test_unsampled_steps_agree_with_the_closed_form_and_are_never_below_it(direction: Direction) -> None:
    random = np.random.default_rng(11)
    logs = random.uniform(np.log([0.3, 1, 1e-12]), np.log([1000, 10**7, 0.1]), (40, 3))
    for sigma, steps, delta in [*np.exp(logs).tolist(), (30.0, 10**6, 1e-12)]:
        found = by_transform([(loss_of(1.0, sigma, direction, delta), round(steps))], delta=delta)
        truth = gaussian_epsilon(round(steps) / sigma**2, delta=delta)
        assert truth * (1 - 2e-9) - 1e-11 <= found <= truth * (1 + 5e-4) + 1e-9, (sigma, steps, delta)


@each_direction
def test_two_different_steps_compose_as_their_convolution_does(direction: Direction) -> None:
    delta, spacing = 1e-4, 2.0**-13
    parts = [(loss_of(0.2, 0.9, direction, delta), 2), (loss_of(0.05, 0.6, direction, delta), 1)]
    grids = [loss.on_grid(spacing) for loss, count in parts for _ in range(count)]
    masses, first = np.ones(1), 0
    for grid in grids:
        masses, first = signal.fftconvolve(masses, grid.masses), first + grid.first
    infinite = 1 - math.prod(1 - grid.infinite_mass for grid in grids)
    whole = GridLoss(spacing, first, masses, infinite)
    assert hockey_stick(whole, by_transform(parts, delta=delta, tolerance=1e-7)) == pytest.approx(delta, rel=1e-3)


def test_a_range_of_repeats_gives_the_same_as_each_alone() -> None:
    delta, loss = 1e-5, loss_of(0.01, 1.1, delta=1e-5)
    many = composition.compose_by_transform([(loss, 1)], delta=delta, tolerance=1e-5, fewest=100, most=200)
    for repeats in (100, 133, 200):
        assert many(repeats) == pytest.approx(by_transform([(loss, repeats)], delta=delta), rel=1e-4)


def test_a_finer_tolerance_never_raises_epsilon_by_much() -> None:
    coarse, fine = (
        by_transform([(loss_of(0.05, 0.8), 300)], delta=1e-6, tolerance=tolerance) for tolerance in (1e-2, 1e-6)
    )
    assert fine <= coarse * (1 + 1e-9)
    assert coarse <= fine * 1.02


@each_direction
@pytest.mark.parametrize("tail", [0.9, 0.1])
def test_mass_beyond_a_narrow_window_is_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, direction: Direction, tail: float
) -> None:
    monkeypatch.setattr(composition, "LOG_TILTED_TAIL", math.log(tail))
    for sigma, steps, delta in ((1.0, 40, 1e-2), (2.0, 200, 1e-5), (3.0, 200, 1e-5)):
        found = by_transform([(loss_of(1.0, sigma, direction, delta), steps)], delta=delta)
        assert found >= gaussian_epsilon(steps / sigma**2, delta=delta) * (1 - 2e-9), (sigma, steps, delta)


@each_direction
def test_mass_at_infinite_loss_is_counted_as_lost(monkeypatch: pytest.MonkeyPatch, direction: Direction) -> None:
    monkeypatch.setattr(privacy_loss, "_LOG_TAIL_PER_DELTA", -5.0)
    for sigma, steps, delta in ((2.0, 10, 1e-5), (5.0, 50, 1e-3), (1.0, 3, 1e-8)):
        found = by_transform([(loss_of(1.0, sigma, direction, delta), steps)], delta=delta)
        assert found >= gaussian_epsilon(steps / sigma**2, delta=delta) * (1 - 2e-9), (sigma, steps, delta)


# Composition pair by pair


def precise_profile(epsilon: mpmath.mpf | float, probability: float, sigma: float, removing: bool) -> mpmath.mpf:
    """δ of one step at ε, of any sign, in 50 digits."""
    with mpmath.workdps(50):
        q, s, e = mpmath.mpf(probability), mpmath.mpf(sigma), mpmath.mpf(epsilon)
        odds = 1 + mpmath.expm1(e if removing else -e) / q
        if odds <= 0:
            return -mpmath.expm1(e) if removing else mpmath.mpf(0)
        threshold, side = s**2 * mpmath.log(odds) + 0.5, -1 if removing else 1
        absent, present = mpmath.ncdf(side * threshold / s), mpmath.ncdf(side * (threshold - 1) / s)
        mixture = (1 - q) * absent + q * present
        return mixture - mpmath.exp(e) * absent if removing else absent - mpmath.exp(e) * mixture


@pytest.mark.parametrize("probability", [1e-3, 1e-6, 1e-9, 1e-14, 1e-19])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 30.0, 1000.0])
def test_one_rare_step_is_never_below_its_exact_profile_and_close_to_it(probability: float, sigma: float) -> None:
    for share in (1e-6, 1e-3, 0.1):
        delta = share * probability / sigma
        found = PLD.epsilon(PoissonSampled(probability, Gaussian(sigma)), delta=delta, adjacency=ADD_OR_REMOVE)
        exact, less = (
            max(precise_profile(epsilon, probability, sigma, removing) for removing in (True, False))
            for epsilon in (found, found * 0.997)
        )
        assert exact <= delta < less


@pytest.mark.parametrize("probability, sigma, delta", [(1e-6, 0.76, 4e-7), (1e-8, 1.6, 9e-10), (1e-5, 20.0, 1e-10)])
def test_two_rare_steps_are_tight(probability: float, sigma: float, delta: float) -> None:
    def two_steps(epsilon: float) -> float:
        """δ of two steps, when the record is removed: the profile of one, integrated over the loss of the other."""

        def inner(x: float) -> mpmath.mpf:
            ratio = 1 - probability + probability * mpmath.exp((2 * x - 1) / (2 * sigma**2))
            left = epsilon - mpmath.log(ratio)
            return ratio * mpmath.npdf(x, 0, sigma) * precise_profile(left, probability, sigma, True)

        with mpmath.workdps(30):
            return float(mpmath.quad(inner, [i * sigma for i in range(-12, 13)] + [1 + 12 * sigma]))

    found = bound(Repeated(PoissonSampled(probability, Gaussian(sigma)), 2), delta=delta).epsilon
    assert two_steps(found) <= delta * (1 + 1e-9)
    assert two_steps(found * 0.997) > delta


@pytest.mark.parametrize("count", [1, 3, 700])
def test_pairs_agree_with_the_transform_where_both_are_precise(count: int) -> None:
    delta = 1e-9
    found = max(
        compose_by_pairs([(loss_of(1e-4, 1.5, way, delta), 1)], delta=delta, most=count)(count) for way in Direction
    )
    unused = PoissonSampled(1.0, Gaussian(1e9))  # one use of every record: the transform composes
    event = Composed((Repeated(PoissonSampled(1e-4, Gaussian(1.5)), count), unused))
    exact = PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE)
    assert exact * (1 - 2e-5) <= found <= exact * 1.004


def test_different_rare_steps_cost_more_than_either_and_no_more_than_the_worse_one_as_often() -> None:
    parts = (Repeated(PoissonSampled(1e-7, Gaussian(0.8)), 30), Repeated(PoissonSampled(2e-7, Gaussian(1.4)), 50))
    worse = Repeated(PoissonSampled(2e-7, Gaussian(0.8)), 80)
    *alone, both, most = (bound(event, delta=1e-10).epsilon for event in (*parts, Composed(parts), worse))
    assert max(alone) < both < most


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
def test_rare_masses_that_are_left_out_are_counted_as_lost(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: float, count: int
) -> None:
    event, delta = Repeated(PoissonSampled(1e-4, Gaussian(0.5)), count), 1e-6
    whole = PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE)
    monkeypatch.setattr(composition, limit, value)
    assert PLD.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE) >= whole * (1 - 1e-4)
