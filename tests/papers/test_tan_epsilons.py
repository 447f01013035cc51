from __future__ import annotations

import math

import pytest

from lehr.papers.tan_epsilons import IMAGENET, Setting, constant_eta, divergence_ratios, epsilons

CIFAR = Setting(batch=4096, records=50_000, steps=2500, noise_multiplier=3.0, delta=1e-5)


def imagenet(batch: int, steps: int) -> Setting:
    return Setting(batch=batch, records=IMAGENET, steps=steps, noise_multiplier=2.5, delta=8e-7)


@pytest.mark.parametrize(
    "setting, balle20, estimate, tight",
    [
        (imagenet(16_384, 72_000), 7.954, 8.215, 7.465),
        (imagenet(32_768, 18_000), 7.980, 8.215, 7.486),
        (CIFAR, 7.10, 7.48, 6.58),
    ],
)
def test_the_papers_settings_cost_what_three_rules_say(
    setting: Setting, balle20: float, estimate: float, tight: float
) -> None:
    found = epsilons(setting)
    assert found.balle20 == pytest.approx(balle20, abs=5e-3)
    assert found.estimate == pytest.approx(estimate, abs=5e-3)
    assert found.tight == pytest.approx(tight, abs=5e-3)


def test_eta_is_that_of_the_estimate() -> None:
    root = math.sqrt(-math.log(CIFAR.delta))
    assert CIFAR.eta**2 + 2 * CIFAR.eta * root == pytest.approx(epsilons(CIFAR).estimate)


def test_a_line_of_figure_2_keeps_eta_and_rises_where_noise_is_small() -> None:
    line = constant_eta(device="cpu", data_dir=None, eta=0.95, steps=64)
    ratios = [q / noise for q, noise in zip(line["sampling_probability"], line["noise_multiplier"], strict=True)]
    assert ratios == pytest.approx([math.sqrt(2 / 64) * 0.95] * len(ratios))
    assert line["epsilon"] == sorted(line["epsilon"], reverse=True)
    assert all(tight < own for tight, own in zip(line["epsilon"], line["epsilon_balle20"], strict=True))


def test_the_approximation_of_a_step_is_fair_from_noise_2_on_and_not_below_1() -> None:
    at_order_16 = {
        curve.noise_multiplier: dict(zip(curve.orders, curve.ratios, strict=True))[16.0]
        for curve in divergence_ratios(3.9e-3)
    }
    assert 1 < at_order_16[4.0] < at_order_16[2.0] < 1.2
    assert at_order_16[0.5] > at_order_16[1.0] > 1000
