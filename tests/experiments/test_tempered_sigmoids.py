from __future__ import annotations

import math
from typing import Any

import pytest

from experiments import tempered_sigmoids_runs as runs
from experiments.experiment import Measurement, Outcomes, Size, Statistic, key_of
from experiments.tempered_sigmoids import (
    TRIPLETS,
    Triplet,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    spread,
    table3,
    table4,
)
from experiments.tempered_sigmoids_runs import CIFAR, FASHION, MNIST, QUICK, TANH, Setting, private
from lehr.networks.activations import activation_by_name
from tests.experiments.made_up_jobs import cells, outcomes_of, shapes_of

WHOLE, SMALL = Size(), Size(is_quick=True, seeds=2)


@pytest.mark.parametrize("setting, digits", [(MNIST, 2), (FASHION, 1), (CIFAR, 2)], ids=["mnist", "fashion", "cifar"])
def test_the_plan_costs_what_the_paper_prints_by_the_accountant_of_its_time(setting: Setting, digits: int) -> None:
    assert round(setting.published_epsilon(setting.steps), digits) == setting.epsilon
    assert setting.running_epsilon(setting.steps) < setting.published_epsilon(setting.steps)


@pytest.mark.parametrize("setting", [MNIST, FASHION, CIFAR, QUICK], ids=lambda setting: setting.data)
def test_every_activation_has_a_step_that_was_in_the_search(setting: Setting) -> None:
    assert set(runs.CHOSEN[setting.data]) == set(runs.ACTIVATIONS)
    assert set(runs.CHOSEN[setting.data].values()) <= set(runs.grid_of(setting))


def outcome(accuracy: float, **other: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "epsilon_published": 2.9306, "epsilon_proven": 2.317, **other}


def test_table_4_has_the_papers_rates_with_and_without_privacy() -> None:
    jobs = table4.jobs(Size(seeds=1))
    shapes = shapes_of(jobs)
    rates = [each["settings"].get("update", each["settings"])["learning_rate"] for each in shapes]
    assert rates[:4] == [0.107, 1.06e-3, 0.332, 1.32e-3]
    assert ["noise_multiplier" in each for each in shapes] == [False, False, True, True, True]
    found = Outcomes({key_of(job): outcome(0.8 + 0.01 * index) for index, job in enumerate(jobs)})
    [table] = table4.report(found, Size(seeds=1)).tables
    assert [row[4] for row in table.rows] == [Statistic((0.8 + 0.01 * index,)) for index in range(5)]
    assert [row[6] for row in table.rows] == ["∞", "∞", 2.317, 2.317, 2.317]


def test_the_spread_is_the_deviation_between_classes() -> None:
    classes = ([0.9, 1.0], [0.7, 1.0])
    jobs = [private(MNIST, TANH, seed) for seed in range(2)]
    found = outcomes_of(jobs, lambda job: outcome(0.9, per_class=classes[job.seed]))
    row = cells(spread.report(found, Size(seeds=2)).tables[0], "MNIST", "tanh")
    assert row["ours"].values == pytest.approx([0.05, 0.15])
    assert (row["paper"], row["worst class"]) == (0.16, Statistic((0.9, 0.7)))


def test_triplets_name_activations_and_tanh_is_that_of_table_3() -> None:
    for triplet in TRIPLETS:
        activation_by_name(triplet.activation)
    [chart] = figure1.report(Outcomes({}), WHOLE).charts
    assert list(chart.lines[0].y) == pytest.approx([math.tanh(x) for x in chart.lines[0].x], abs=1e-12)
    assert Triplet(2, 2, 1).activation == "tanh"
    assert Triplet(1, 4, 0.5).activation == "tempered_sigmoid(1, 4, 0.5)"
    keys = {key_of(job) for job in table3.jobs(WHOLE)}
    assert sum(key_of(job) in keys for job in figure2.jobs(WHOLE)) == 2  # one on each data set


def test_the_best_tenth_is_averaged_once_every_triplet_was_run() -> None:
    jobs = [job for job in figure2.jobs(WHOLE) if job.to_json()["data"] == "mnist"]
    top = {Triplet(1, 2, 0.5), Triplet(2, 2, 1), Triplet(3, 2, 1.5)}
    found = {
        key_of(job): {"accuracy": 0.98 if triplet in top else 0.9} for triplet, job in zip(TRIPLETS, jobs, strict=True)
    }
    summary, all_of_mnist, _ = figure2.report(Outcomes(found), WHOLE).tables
    mnist, fashion = summary.rows
    assert (*mnist[1:3], mnist[-1]) == ("(1.97, 2.27, 1.15)", "(2.00, 2.00, 1.00)", 27)
    assert (fashion[2], fashion[-1]) == (None, 0)
    assert {tuple(row[:3]) for row in all_of_mnist.rows[:3]} == top
    del found[key_of(jobs[0])]
    partly = figure2.report(Outcomes(found), WHOLE).tables[0].rows[0]
    assert (partly[2], partly[-1]) == (None, 26)


def test_the_activations_of_figure_3_differ_in_nothing_else() -> None:
    pairs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for shape in shapes_of(figure3.jobs(WHOLE)):
        pairs.setdefault((shape["data"], shape["seed"]), []).append(shape)
    for pair in pairs.values():
        assert [shape.pop("network")[1]["activation"] for shape in pair] == ["relu", "tanh"]
        assert pair[0] == pair[1]
    tanh = {key_of(private(MNIST, TANH, seed)) for seed in range(5)}
    for experiment in (table3, figure3):
        assert tanh <= {key_of(job) for job in experiment.jobs(WHOLE)}


def test_figure_3_reads_off_accuracies_at_the_last_evaluation_within_an_epsilon() -> None:
    every = range(12, 121, 12)
    jobs = [private(QUICK, TANH, seed) for seed in range(2)]
    found = outcomes_of(jobs, lambda job: {"trajectory": [[n, n, (0.8, 1.0)[job.seed] * n / 120, 1.0] for n in every]})
    shown = figure3.report(found, SMALL)
    published = QUICK.published_epsilon
    limits = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0)
    for title, own, proven, steps, relu, tanh, paper in shown.tables[0].rows:
        assert isinstance(steps, int)
        assert isinstance(tanh, Statistic)
        assert (title, relu, paper) == (QUICK.title, Statistic(()), None)
        assert (own, proven) == (published(steps), QUICK.running_epsilon(steps))
        assert tanh.values == pytest.approx((0.8 * steps / 120, steps / 120))
        assert steps == 120 or any(published(steps) <= limit < published(steps + 12) for limit in limits)
    assert len(shown.tables[0].rows) > 3
    first, second = shown.charts[0].lines
    assert list(first.y) == pytest.approx([0.9 * n / 120 for n in every])
    assert (first.x[-1], second.x[-1]) == (published(120), QUICK.running_epsilon(120))


def norms(factor: float, *, epsilon: float | None) -> dict[str, Any]:
    rising = [factor * (1 + step) for step in range(5)]
    return {
        "step": [0, 10, 20, 30, 40],
        "gradient_norm": rising,
        "activation_norm": [value / 2 for value in rising],
        "accuracy": 0.9,
        "epsilon_proven": epsilon,
    }


def test_norms_are_compared_with_those_of_relu_without_privacy() -> None:
    jobs = figure4.jobs(WHOLE)
    arguments = [dict(job.arguments) for job in jobs if isinstance(job, Measurement)]
    kinds = [(each.pop("activation"), each.pop("noise_multiplier")) for each in arguments]
    assert kinds == [("relu", None), ("tanh", None), ("relu", 1.118), ("tanh", 1.118)]
    assert all(each == arguments[0] for each in arguments)  # trained alike otherwise
    found = Outcomes({key_of(jobs[0]): norms(1.0, epsilon=None), key_of(jobs[2]): norms(6.0, epsilon=2.317)})
    [table] = figure4.report(found, WHOLE).tables
    assert table.rows[2][1:5] == (Statistic((6.0,)), Statistic((30.0,)), Statistic((30.0,)), Statistic((6.0,)))
    assert [row[-1] for row in table.rows] == ["∞", "∞", 2.317, None]
    assert figure5.report(found, WHOLE).tables[0].rows[1][1] == Statistic((3.0,))


def test_norms_are_drawn_as_the_papers_moving_average() -> None:
    first, second = figure4.jobs(Size(seeds=2))[:2]
    one = {**norms(1.0, epsilon=None), "gradient_norm": [1.0, 2.0, 7.0, 4.0, 5.0]}
    found = Outcomes({key_of(first): one, key_of(second): norms(3.0, epsilon=None)})
    [chart] = figure4.report(found, Size(seeds=2)).charts
    assert list(chart.lines[0].y) == pytest.approx([2.0, 4.5, 7.0, 8.5, 10.0])  # of the means 2, 4, 8, 8, 10
    assert list(chart.lines[0].x) == [0, 10, 20, 30, 40]
