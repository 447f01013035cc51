"""Composition on a tilted grid, against closed forms and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import signal

from lehr.accounting import privacy_loss, tilted, window
from lehr.accounting.gaussian_mechanism import gaussian_epsilon
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.accounting.window import Parts


def _loss(probability: float, sigma: float, delta: float, direction: Direction) -> SampledGaussianLoss:
    return SampledGaussianLoss(
        sampling_probability=probability, noise_multiplier=sigma, direction=direction, delta=delta
    )


def _epsilon(parts: Parts, *, delta: float, tolerance: float) -> float:
    return tilted.repeated(parts, delta=delta, tolerance=tolerance, fewest=1, most=1)(1)


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
    many = tilted.repeated([(loss, 1)], delta=delta, tolerance=1e-5, fewest=100, most=200)
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
    for module in (tilted, window):
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
