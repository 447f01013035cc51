from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.planning.constant_eta import ORDERS, Curve, curves, deciding_order, ratio_curves
from lehr.planning.plan import Plan
from lehr.planning.tan import large_noise_epsilon, total_noise

CIFAR10 = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
SMALL = Plan(noise_multiplier=0.6, expected_batch_size=100, records=200, steps=3, delta=1e-5)


@pytest.fixture(scope="module")
def drawn() -> tuple[Curve, ...]:
    return tuple(curves(CIFAR10))


def test_every_point_has_the_plans_eta(drawn: tuple[Curve, ...]) -> None:
    eta = total_noise(CIFAR10).eta
    for curve in drawn:
        for point in curve.points:
            found = point.sampling_probability * math.sqrt(curve.steps / 2) / point.noise_multiplier
            assert found == pytest.approx(eta)


def test_epsilon_falls_with_the_noise_towards_one_limit_for_all_steps(drawn: tuple[Curve, ...]) -> None:
    limit = large_noise_epsilon(total_noise(CIFAR10).signal, delta=CIFAR10.delta)
    for curve in drawn:
        epsilons = [point.epsilon for point in curve.points]
        assert epsilons == sorted(epsilons, reverse=True)
        assert epsilons[0] > 3 * limit  # the wall
        assert limit < epsilons[-1] < 1.02 * limit  # the plain behind it


def test_the_papers_accountant_lies_above_the_tight_one(drawn: tuple[Curve, ...]) -> None:
    [own] = [curve for curve in drawn if curve.is_of_plan]
    assert all(point.epsilon_balle20 and point.epsilon_balle20 > point.epsilon for point in own.points)


def test_the_plan_itself_is_on_its_curve(drawn: tuple[Curve, ...]) -> None:
    [own] = [curve for curve in drawn if curve.is_of_plan]
    [point] = [point for point in own.points if point.noise_multiplier == CIFAR10.noise_multiplier]
    assert own.steps == CIFAR10.steps
    assert point.sampling_probability == pytest.approx(CIFAR10.sampling_probability)
    assert point.epsilon == pytest.approx(CIFAR10.bound().epsilon)
    assert [curve.steps for curve in drawn] == [156, 2500, 40_000]


def test_no_curve_samples_more_than_every_record() -> None:
    found = tuple(curves(SMALL, step_factors=(1 / 16, 1.0)))
    assert all(0 < point.sampling_probability <= 1 for curve in found for point in curve.points)
    assert any(curve.points[-1].sampling_probability == pytest.approx(1) for curve in found)


def test_a_divergence_is_its_approximation_for_large_noise_and_far_above_it_for_small() -> None:
    found = {curve.noise_multiplier: curve for curve in ratio_curves(replace(CIFAR10, noise_multiplier=20.0))}
    assert found[20.0].ratios[0] == pytest.approx(1, abs=0.01)
    assert found[20.0].is_of_plan
    assert found[0.5].ratios[0] > 5


def test_the_ratio_is_near_one_from_a_noise_multiplier_of_two_on() -> None:
    imagenet = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_200_000, steps=72_000, delta=8e-7)
    assert total_noise(imagenet).eta_step == pytest.approx(3.9e-3, abs=5e-5)  # that of the paper's Figure 3
    for curve in ratio_curves(imagenet):
        near = [ratio for order, ratio in zip(curve.orders, curve.ratios, strict=True) if order <= 12]
        assert (max(near) < 1.25) == (curve.noise_multiplier >= 2)
        assert min(near) >= 1


def test_the_ratio_rises_with_the_order_and_falls_with_the_noise() -> None:
    found = ratio_curves(CIFAR10)
    assert [curve.noise_multiplier for curve in found] == [0.5, 1.0, 2.0, 3.0, 4.0]
    for curve in found:
        assert curve.orders == ORDERS
        assert list(curve.ratios) == sorted(curve.ratios)
    at_order_eight = [curve.ratios[ORDERS.index(8.0)] for curve in found]
    assert at_order_eight == sorted(at_order_eight, reverse=True)


def test_the_deciding_order_is_where_the_estimate_takes_its_minimum() -> None:
    eta, order = total_noise(CIFAR10).eta, deciding_order(CIFAR10)

    def estimate_at(other: float) -> float:
        return other * eta**2 - math.log(CIFAR10.delta) / (other - 1)

    assert estimate_at(order) == pytest.approx(eta**2 + 2 * eta * math.sqrt(-math.log(CIFAR10.delta)))
    assert estimate_at(order) < min(estimate_at(0.9 * order), estimate_at(1.1 * order))
