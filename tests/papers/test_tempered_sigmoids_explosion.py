"""Figures 4 and 5 of the tempered sigmoids' paper, from made-up norms."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Measurement, key_of
from lehr.papers.table import Measured
from lehr.papers.tempered_sigmoids_explosion import FIGURE4, FIGURE5

NOISE = {True: 1.118, False: None}


def seen(factor: float, *, epsilon: float | None) -> dict[str, Any]:
    rising = [factor * (1 + place) for place in range(5)]
    halves = [value / 2 for value in rising]
    return {
        "step": [0, 10, 20, 30, 40],
        "gradient_norm": rising,
        "activation_norm": halves,
        "share_cut": [0.5] * 5,
        "accuracy": 0.9,
        "epsilon_proven": epsilon,
    }


def test_the_four_scenarios_are_trained_alike_but_for_noise_and_activation() -> None:
    jobs = FIGURE4.jobs(Size())
    words = [dict(job.arguments) for job in jobs if isinstance(job, Measurement)]
    kinds = [(each.pop("activation"), each.pop("noise_multiplier")) for each in words]
    assert kinds == [("relu", None), ("tanh", None), ("relu", 1.118), ("tanh", 1.118)]
    assert all(each == words[0] for each in words)
    assert words[0]["steps"] == 14_062


def test_figure_5_needs_no_runs_of_its_own() -> None:
    assert {key_of(job) for job in FIGURE5.jobs(Size())} < {key_of(job) for job in FIGURE4.jobs(Size())}


def test_norms_at_last_are_compared_with_those_of_relu_without_privacy() -> None:
    plain_relu, _, private_relu, _ = FIGURE4.jobs(Size())
    found = {key_of(plain_relu): seen(1.0, epsilon=None), key_of(private_relu): seen(6.0, epsilon=2.317)}
    [table] = FIGURE4.shown(Outcomes(found), Size()).tables
    assert [row[0] for row in table.rows] == ["ReLU, SGD", "tanh, SGD", "ReLU, DPSGD", "tanh, DPSGD"]
    assert table.rows[2][1:5] == (Measured((6.0,)), Measured((30.0,)), Measured((30.0,)), Measured((6.0,)))
    assert [row[-1] for row in table.rows] == ["∞", "∞", 2.317, None]
    [of_activations] = FIGURE5.shown(Outcomes(found), Size()).tables
    assert of_activations.rows[1][1] == Measured((3.0,))


def test_the_chart_has_the_papers_moving_average_of_a_mean_over_runs() -> None:
    first, second = FIGURE4.jobs(Size(seeds=2))[:2]
    found = {key_of(first): seen(1.0, epsilon=None), key_of(second): seen(3.0, epsilon=None)}
    found[key_of(first)]["gradient_norm"] = [1.0, 2.0, 7.0, 4.0, 5.0]
    [chart] = FIGURE4.shown(Outcomes(found), Size(seeds=2)).charts
    [line] = chart.lines
    means = [2.0, 4.0, 8.0, 8.0, 10.0]
    middle = [(a + 2 * b + c) / 4 for a, b, c in zip(means, means[1:], means[2:], strict=False)]
    assert list(line.y) == pytest.approx([2.0, *middle, 10.0])
    assert list(line.x) == [0, 10, 20, 30, 40]
