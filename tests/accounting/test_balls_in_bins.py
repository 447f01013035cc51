"""ε of epochs of balls-in-bins sampling against Monte Carlo, closed forms and other samplings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lehr.accounting import balls_in_bins
from lehr.accounting.accountant import ACCOUNTANTS, EpsilonCurve, bound, claim
from lehr.accounting.balls_in_bins import LARGEST_BINS, SMALLEST_NOISE, BallsInBinsLoss
from lehr.accounting.events import Adjacency, BallsInBins, Event, Gaussian, PoissonSampled, PureDP, Repeated, together
from lehr.accounting.pld import PLD
from lehr.accounting.privacy_loss import Direction, Floats
from lehr.errors import AccountantFailed, InvalidValue, UnsupportedEvent

SAMPLES = 400_000
DELTA = 1e-5


def epsilon_of(event: Event, *, delta: float = DELTA) -> float:
    return PLD.epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def epochs(bins: int, sigma: float, count: int = 1) -> Event:
    return Repeated(BallsInBins(bins, Gaussian(sigma)), count)


def sampled_losses(bins: int, sigma: float, count: int, direction: Direction, rng: np.random.Generator) -> Floats:
    """Losses of epochs, drawn by the definition: noise in every bin, the record in one of them."""
    total = np.zeros(SAMPLES)
    for _ in range(count):
        z = rng.normal(0.0, sigma, (SAMPLES, bins))
        if direction is Direction.REMOVE:
            z[np.arange(SAMPLES), rng.integers(0, bins, SAMPLES)] += 1.0
        log_ratio = np.log(np.mean(np.exp((2 * z - 1) / (2 * sigma**2)), axis=1))
        total += log_ratio if direction is Direction.REMOVE else -log_ratio
    return total


def delta_interval(losses: Floats, epsilon: float) -> tuple[float, float]:
    """A 99.99 % confidence interval of δ at ε: the mean of (1 − e^(ε − loss))₊."""
    values = -np.expm1(np.minimum(epsilon - losses, 0.0))
    half = 3.9 * float(values.std()) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half


@pytest.mark.parametrize("seed", range(50))
def test_delta_at_epsilon_is_that_of_monte_carlo(seed: int) -> None:
    """At a large δ, where Monte Carlo is precise: neither below the truth nor much above it, in the worse direction."""
    rng = np.random.default_rng(seed)
    bins, count = int(rng.integers(1, 13)), int(rng.integers(1, 4))
    sigma = float(np.exp(rng.uniform(math.log(0.4), math.log(4.0))))
    delta = float(10 ** rng.uniform(-3, -1.2))
    epsilon = epsilon_of(epochs(bins, sigma, count), delta=delta)
    intervals = [delta_interval(sampled_losses(bins, sigma, count, direction, rng), epsilon) for direction in Direction]
    assert max(low for low, _ in intervals) <= delta
    if epsilon > 0:
        assert max(high for _, high in intervals) >= 0.995 * delta


@pytest.mark.parametrize("direction", Direction)
def test_each_direction_is_that_of_monte_carlo(direction: Direction) -> None:
    rng = np.random.default_rng(5)
    loss = BallsInBinsLoss(bins=6, noise_multiplier=0.8, direction=direction, delta=1e-3)
    losses = sampled_losses(6, 0.8, 1, direction, rng)
    masses, infinite = np.exp(loss.log_masses), loss.on_points(np.array([loss.smallest, loss.largest]))[1]
    for epsilon in (0.0, 0.5, 1.0, 1.5):
        found = float(masses @ np.maximum(-np.expm1(epsilon - loss.losses), 0.0)) + infinite
        low, high = delta_interval(losses, epsilon)
        assert low <= found <= high + 2e-4 * high


@pytest.mark.parametrize("sigma, count", [(0.5, 1), (1.0, 3), (4.0, 10), (300.0, 2)])
def test_one_bin_is_the_gaussian_mechanism(sigma: float, count: int) -> None:
    exact = bound(Repeated(Gaussian(sigma), count), delta=DELTA).epsilon
    assert exact * (1 - 1e-9) <= epsilon_of(epochs(1, sigma, count)) <= exact * 1.001


def test_two_bins_have_the_divergence_of_the_mixture() -> None:
    """By the integral over one coordinate of the exact normal tail in the other."""
    sigma = 1.0
    epsilon = epsilon_of(epochs(2, sigma))
    first = np.linspace(-9.0, 10.0, 40_001)
    other = 2 * math.exp(epsilon) - np.exp(first - 0.5)  # what L₂ has to exceed
    with np.errstate(invalid="ignore", divide="ignore"):
        edge = np.where(other > 0, np.log(other) + 0.5, -np.inf)
    absent, present = stats.norm.sf(edge), stats.norm.sf(edge - 1)
    upper = 0.5 * stats.norm.pdf(first - 1) * absent + 0.5 * stats.norm.pdf(first) * present
    lower = stats.norm.pdf(first) * absent
    delta = np.trapezoid(upper - math.exp(epsilon) * lower, first)
    assert 0.99 * DELTA <= delta <= DELTA * (1 + 1e-6)


@pytest.mark.parametrize("bins, sigma, count", [(10, 1.0, 1), (100, 1.0, 10), (117, 0.7, 10), (20, 2.0, 20)])
def test_an_epoch_costs_less_than_no_sampling_and_more_than_one_in_which_the_bin_is_lost(
    bins: int, sigma: float, count: int
) -> None:
    """Summing all steps is a post-processing: one Gaussian release with noise √k·σ. Poisson costs more at these."""
    found = epsilon_of(epochs(bins, sigma, count))
    assert bound(Repeated(Gaussian(math.sqrt(bins) * sigma), count), delta=DELTA).epsilon < found
    assert found < bound(Repeated(Gaussian(sigma), count), delta=DELTA).epsilon
    assert found < bound(Repeated(PoissonSampled(1 / bins, Gaussian(sigma)), bins * count), delta=DELTA).epsilon


@pytest.mark.parametrize("bins, sigma", [(7, 0.5), (30, 1.0)])
def test_a_finer_grid_lowers_epsilon_and_hardly(bins: int, sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def removing() -> float:
        loss = BallsInBinsLoss(bins=bins, noise_multiplier=sigma, direction=Direction.REMOVE, delta=DELTA)
        return float(np.exp(loss.log_masses) @ np.maximum(-np.expm1(1.0 - loss.losses), 0.0))

    usual = removing()
    monkeypatch.setattr(balls_in_bins, "WIDTH", balls_in_bins.WIDTH / 2)
    balls_in_bins._law.cache_clear()
    finer = removing()
    balls_in_bins._law.cache_clear()
    assert finer * (1 - 1e-6) <= usual <= finer * 1.005


def test_the_masses_of_both_neighbours_are_probabilities() -> None:
    for direction in Direction:
        loss = BallsInBinsLoss(bins=23, noise_multiplier=0.9, direction=direction, delta=DELTA)
        assert math.isclose(loss.log_moment(0.0), 0.0, abs_tol=1e-8)
        assert math.isclose(loss.log_moment(-1.0), 0.0, abs_tol=1e-8)


def test_epsilon_falls_with_noise_and_bins_and_rises_with_epochs() -> None:
    base = epsilon_of(epochs(20, 1.0, 2))
    assert epsilon_of(epochs(20, 1.1, 2)) < base
    assert epsilon_of(epochs(40, 1.0, 2)) < base
    assert epsilon_of(epochs(20, 1.0, 3)) > base


def test_epochs_compose_with_other_events() -> None:
    alone = epsilon_of(epochs(20, 1.0, 2))
    beside = epsilon_of(together(epochs(20, 1.0, 2), Gaussian(20.0), PureDP(0.01)))
    assert alone < beside < alone + 0.5


def test_no_noise_is_infinite_and_extreme_numbers_are_counted_or_refused() -> None:
    assert epsilon_of(epochs(10, 0.0)) == math.inf
    assert epsilon_of(epochs(10, 1e9)) < 1e-3
    for bins, sigma in ((LARGEST_BINS + 1, 1.0), (10, SMALLEST_NOISE / 2)):
        with pytest.raises(AccountantFailed):
            epsilon_of(epochs(bins, sigma))


def test_only_pld_counts_epochs_and_not_under_replace_one() -> None:
    event = BallsInBins(10, Gaussian(1.0))
    for name, accountant in ACCOUNTANTS.items():
        for adjacency in Adjacency:
            if name == "pld" and adjacency is not Adjacency.REPLACE_ONE:
                assert accountant.epsilon(event, delta=DELTA, adjacency=adjacency) == epsilon_of(event)
                continue
            with pytest.raises(UnsupportedEvent):
                accountant.epsilon(event, delta=DELTA, adjacency=adjacency)


def test_the_claim_names_the_theorem_and_its_premise() -> None:
    found = claim(epochs(10, 1.0, 3), delta=DELTA)
    assert "balls-in-bins" in found.theorem
    assert any("epoch" in premise.statement for premise in found.premises)


def test_a_curve_counts_an_epoch_from_its_first_step() -> None:
    curve = EpsilonCurve(BallsInBins(10, Gaussian(1.0)), delta=DELTA, largest_steps=25, steps_per_event=10)
    assert curve.at(0) == 0
    assert curve.at(1) == curve.at(10) < curve.at(11) <= curve.at(20) < curve.at(21) == curve.at(25)
    assert math.isclose(curve.at(25), epsilon_of(epochs(10, 1.0, 3)), rel_tol=1e-9)
    with pytest.raises(InvalidValue):
        curve.at(26)
