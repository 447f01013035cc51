from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from experiments import costs, tempered_sigmoids_runs
from experiments.experiment import Cell, Job, Measurement, Outcomes, Size, Statistic, key_of
from experiments.tempered_sigmoids import figure4, figure5, spread, table3, table4
from experiments.tempered_sigmoids_runs import (
    ACTIVATIONS,
    CHOSEN,
    MNIST,
    QUICK,
    RELU,
    SETTINGS,
    TANH,
    TRIPLETS,
    Setting,
    Triplet,
    figure1,
    figure2,
    figure3,
    private,
    proven_epsilon,
    published_epsilon,
)
from lehr.accounting import ACCOUNTANTS
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.networks.activations import activation_by_name
from tests.experiments.made_up_jobs import words_of


@pytest.mark.parametrize("setting, digits", [*zip(SETTINGS, (2, 1, 2), strict=True)])
def test_the_plan_costs_what_the_paper_prints_by_the_accountant_of_its_time(setting: Setting, digits: int) -> None:
    step = PoissonSampled(setting.batch / setting.records, Gaussian(setting.noise_multiplier))
    whole, adjacency = Repeated(step, setting.steps), Adjacency.ADD_OR_REMOVE_ONE
    published = ACCOUNTANTS["rdp-mironov17"].epsilon(whole, delta=costs.DELTA, adjacency=adjacency)
    assert round(published, digits) == setting.epsilon


@pytest.mark.parametrize("setting", [*SETTINGS, QUICK], ids=lambda setting: setting.data)
def test_every_activation_has_a_step_that_was_in_the_search(setting: Setting) -> None:
    assert set(CHOSEN[setting.data]) == set(ACTIVATIONS)
    assert set(CHOSEN[setting.data].values()) <= set(tempered_sigmoids_runs.grid_of(setting))


def test_the_family_has_tanh_as_its_first() -> None:
    assert next(iter(tempered_sigmoids_runs.family())) == "(2, 2, 1): tanh"
    [chart] = figure1.report(Outcomes({}), Size()).charts
    tanh = chart.lines[0]
    assert list(tanh.y) == pytest.approx([math.tanh(x) for x in tanh.x], abs=1e-12)
    assert figure1.jobs(Size()) == []


def test_triplets_are_words_that_a_network_knows_and_tanh_is_table_3s() -> None:
    for triplet in TRIPLETS:
        activation_by_name(triplet.word)
    assert Triplet(2, 2, 1).word == "tanh"
    assert Triplet(1, 4, 0.5).word == "tempered_sigmoid(1, 4, 0.5)"
    keys = {key_of(job) for job in table3.jobs(Size())}
    assert sum(key_of(job) in keys for job in figure2.jobs(Size())) == 2  # one on each data set


def test_the_best_tenth_is_averaged_once_every_triplet_was_run() -> None:
    jobs = [job for job in figure2.jobs(Size()) if job.to_json()["data"] == "mnist"]
    best = {TRIPLETS.index(Triplet(*each)): 0.98 for each in ((1, 2, 0.5), (2, 2, 1), (3, 2, 1.5))}
    found = {key_of(job): {"accuracy": best.get(place, 0.9)} for place, job in enumerate(jobs)}
    summary, all_of_mnist, _ = figure2.report(Outcomes(found), Size()).tables
    mnist, fashion = summary.rows
    assert mnist[1:3] == ("(1.97, 2.27, 1.15)", "(2.00, 2.00, 1.00)")
    assert mnist[-1] == 27
    assert fashion[2] is None
    assert fashion[-1] == 0
    assert {tuple(row[:3]) for row in all_of_mnist.rows[:3]} == {(1, 2, 0.5), (2, 2, 1), (3, 2, 1.5)}
    _, *rest = found
    partly = figure2.report(Outcomes({key: found[key] for key in rest}), Size()).tables[0].rows[0]
    assert partly[2] is None
    assert partly[-1] == 26


SMALL = Size(is_quick=True, seeds=2)


def trajectory(accuracy: float) -> dict[str, object]:
    return {"trajectory": [[steps, steps, accuracy * steps / 120, 1.0] for steps in range(12, 121, 12)]}


def test_epsilon_is_that_of_the_accountants() -> None:
    assert published_epsilon(MNIST, MNIST.steps) == pytest.approx(2.9306, abs=1e-4)
    assert proven_epsilon(MNIST, MNIST.steps) == pytest.approx(2.317, abs=1e-3)
    assert proven_epsilon(QUICK, 12) < published_epsilon(QUICK, 12) < published_epsilon(QUICK, 24)


def test_the_two_activations_differ_in_nothing_else_and_tanh_is_the_runs_of_table_3() -> None:
    pairs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for words in words_of(figure3.jobs(Size())):
        pairs.setdefault((words["data"], words["seed"]), []).append(words)
    for pair in pairs.values():
        relu, tanh = ({**words, "network": None} for words in pair)
        assert tanh == relu
        assert [words["network"][1]["activation"] for words in pair] == ["relu", "tanh"]
    runs = {key_of(private(MNIST, TANH, seed)) for seed in range(5)}
    for experiment in (table3, figure3):
        assert runs <= {key_of(job) for job in experiment.jobs(Size())}


def test_accuracies_are_read_off_where_the_published_epsilon_is_reached() -> None:
    jobs = [private(QUICK, TANH, seed) for seed in range(2)]
    found = {key_of(job): trajectory(accuracy) for job, accuracy in zip(jobs, (0.8, 1.0), strict=True)}
    shown = figure3.report(Outcomes(found), SMALL)
    rows = shown.tables[0].rows
    for row in rows:
        _agrees(*row)
    assert rows[-1][3] == QUICK.steps
    first, second = shown.charts[0].lines
    assert list(first.y) == pytest.approx([0.9 * steps / 120 for steps in range(12, 121, 12)])
    assert first.x[-1] == published_epsilon(QUICK, 120)
    assert second.x[-1] == proven_epsilon(QUICK, 120)


def _agrees(title: Cell, published: Cell, proven: Cell, steps: Cell, relu: Cell, tanh: Cell, paper: Cell) -> None:
    assert isinstance(steps, int)
    assert (published, proven) == (published_epsilon(QUICK, steps), proven_epsilon(QUICK, steps))
    assert relu == Statistic(())
    assert isinstance(tanh, Statistic)
    assert tanh.values == pytest.approx((0.8 * steps / 120, steps / 120))
    assert (title, paper) == (QUICK.title, None)


def test_each_row_is_the_last_look_within_a_round_epsilon() -> None:
    rows = figure3.report(Outcomes({}), SMALL).tables[0].rows
    published = [row[1] for row in rows if isinstance(row[1], float)]
    following = [published_epsilon(QUICK, row[3] + 12) for row in rows[:-1] if isinstance(row[3], int)]
    assert published == sorted(published)
    assert len(published) == len(rows) > 3
    for cost, after in zip(published, following, strict=False):
        assert any(cost <= each < after for each in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0))


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
    jobs = figure4.jobs(Size())
    words = [dict(job.arguments) for job in jobs if isinstance(job, Measurement)]
    kinds = [(each.pop("activation"), each.pop("noise_multiplier")) for each in words]
    assert kinds == [("relu", None), ("tanh", None), ("relu", 1.118), ("tanh", 1.118)]
    assert all(each == words[0] for each in words)
    assert words[0]["steps"] == 14_062


def test_norms_at_last_are_compared_with_those_of_relu_without_privacy() -> None:
    plain_relu, _, private_relu, _ = figure4.jobs(Size())
    found = {key_of(plain_relu): seen(1.0, epsilon=None), key_of(private_relu): seen(6.0, epsilon=2.317)}
    [table] = figure4.report(Outcomes(found), Size()).tables
    assert [row[0] for row in table.rows] == ["ReLU, SGD", "tanh, SGD", "ReLU, DPSGD", "tanh, DPSGD"]
    assert table.rows[2][1:5] == (Statistic((6.0,)), Statistic((30.0,)), Statistic((30.0,)), Statistic((6.0,)))
    assert [row[-1] for row in table.rows] == ["∞", "∞", 2.317, None]
    [of_activations] = figure5.report(Outcomes(found), Size()).tables
    assert of_activations.rows[1][1] == Statistic((3.0,))


def test_the_chart_has_the_papers_moving_average_of_a_mean_over_runs() -> None:
    first, second = figure4.jobs(Size(seeds=2))[:2]
    found = {key_of(first): seen(1.0, epsilon=None), key_of(second): seen(3.0, epsilon=None)}
    found[key_of(first)]["gradient_norm"] = [1.0, 2.0, 7.0, 4.0, 5.0]
    [chart] = figure4.report(Outcomes(found), Size(seeds=2)).charts
    [line] = chart.lines
    means = [2.0, 4.0, 8.0, 8.0, 10.0]
    middle = [(a + 2 * b + c) / 4 for a, b, c in zip(means, means[1:], means[2:], strict=False)]
    assert list(line.y) == pytest.approx([2.0, *middle, 10.0])
    assert list(line.x) == [0, 10, 20, 30, 40]


def outcome(accuracy: float, **other: Any) -> dict[str, Any]:
    return {"accuracy": accuracy, "epsilon_published": 2.9306, "epsilon_proven": 2.317, **other}


def outcomes_of(pairs: Iterable[tuple[Job, dict[str, Any]]]) -> Outcomes:
    return Outcomes({key_of(job): found for job, found in pairs})


def _is_empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, Statistic) and not cell.values)


def test_table_3_has_the_means_beside_the_papers_numbers() -> None:
    jobs = table3.jobs(Size(seeds=2))
    relu = [job for job in jobs if job in [private(MNIST, RELU, seed) for seed in range(2)]]
    [table] = table3.report(outcomes_of(zip(relu, [outcome(0.96), outcome(0.97)], strict=True)), Size(seeds=2)).tables
    printed = {(row[0], row[1]): row[2] for row in table.rows}
    assert printed["MNIST", "ReLU"] == 0.966
    assert printed["FashionMNIST", "tanh"] == 0.861
    assert printed["CIFAR-10", "ReLU, not private"] == 0.766
    [row] = [row for row in table.rows if row[:2] == ("MNIST", "ReLU")]
    assert row[3] == Statistic((0.96, 0.97))
    assert row[4:6] == (2.9306, 2.317)
    others = [row for row in table.rows if row[:2] != ("MNIST", "ReLU")]
    assert all(_is_empty(row[3]) for row in others)
    assert all(row[5] == ("∞" if "not private" in str(row[1]) else None) for row in others)


def test_table_4_has_the_papers_rates_with_and_without_privacy() -> None:
    jobs = table4.jobs(Size(seeds=1))
    words = words_of(jobs)
    rates = [each["settings"].get("update", each["settings"])["learning_rate"] for each in words]
    assert rates[:4] == [0.107, 1.06e-3, 0.332, 1.32e-3]
    assert ["noise_multiplier" in each for each in words] == [False, False, True, True, True]
    found = outcomes_of((job, outcome(0.8 + 0.01 * place)) for place, job in enumerate(jobs))
    [table] = table4.report(found, Size(seeds=1)).tables
    assert [row[:4] for row in table.rows[:4]] == [
        ("SGD", "no", 0.107, 0.903),
        ("Adam", "no", 1.06e-3, 0.905),
        ("SGD", "yes", 0.332, 0.861),
        ("Adam", "yes", 1.32e-3, 0.860),
    ]
    assert [row[4] for row in table.rows] == [Statistic((0.8 + 0.01 * place,)) for place in range(5)]
    assert [row[6] for row in table.rows] == ["∞", "∞", 2.317, 2.317, 2.317]


def test_the_spread_is_the_deviation_between_classes_as_a_mean_over_runs() -> None:
    jobs = [private(MNIST, TANH, seed) for seed in range(2)]
    classes = ([0.9, 1.0], [0.7, 1.0])
    found = outcomes_of((job, outcome(0.9, per_class=shares)) for job, shares in zip(jobs, classes, strict=True))
    [table] = spread.report(found, Size(seeds=2)).tables
    [row] = [row for row in table.rows if row[:2] == ("MNIST", "tanh")]
    assert row[2] == 0.16
    assert isinstance(row[3], Statistic)
    assert math.isclose(row[3].mean or 0, (0.05 + 0.15) / 2)
    assert row[4] == Statistic((0.9, 0.7))
