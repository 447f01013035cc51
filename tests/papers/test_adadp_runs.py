from __future__ import annotations

import math

import pytest

from lehr import networks
from lehr.data import known
from lehr.methods import by_name
from lehr.papers import adadp_curves, adadp_levels
from lehr.papers import adadp_runs as runs
from lehr.papers.experiment import Size

MNIST = runs.on_mnist(noise=3.0, components=6.0, delta=1e-4)
WAYS = {way.name: way for way in (*adadp_curves.ways_on_mnist(10), *adadp_curves.ways_on_cifar(10))}


@pytest.mark.parametrize("way", [*WAYS.values(), *adadp_levels.MNIST.ways], ids=lambda way: way.name)
def test_every_way_is_a_method_with_settings_that_it_has(way: runs.Way) -> None:
    method = by_name.named(way.method, **way.settings)
    assert way.is_proven == (method.clipping.unproven is None)


def test_numbers_of_records_are_those_of_the_known_data_sets() -> None:
    assert {name: known.KNOWN[name].records for name in runs.RECORDS} == runs.RECORDS


def test_dpsgd_falls_to_the_papers_rate_over_ten_passes() -> None:
    settings = runs.dpsgd(1).settings
    assert settings["learning_rate"] * settings["schedule"]["last"] == pytest.approx(0.052)
    assert settings["schedule"]["steps"] * runs.BATCH == 10 * runs.RECORDS["mnist"]


def test_bounds_of_layers_on_cifar_10_are_the_papers_and_have_one_norm_together() -> None:
    network = networks.build("alexnet_like", frozen_convolutions=True)
    trained = {name.rpartition(".")[0] for name, value in network.named_parameters() if value.requires_grad}
    assert set(runs.CIFAR_BOUNDS) == trained
    assert sorted(runs.CIFAR_BOUNDS.values()) == [3, 3, 6]
    assert math.sqrt(54) == pytest.approx(runs.CIFAR_CLIP_NORM)


def test_convolutions_are_trained_for_thirty_passes() -> None:
    assert runs.PRETRAINED["steps"] == 30 * 50_000 // runs.PRETRAINED["expected_batch_size"]


def test_epsilon_has_the_private_components_in_it() -> None:
    without = runs.epsilon_of(
        1000, sampling_probability=0.01, noise=3.0, components=None, accountant=runs.PUBLISHED, delta=1e-4
    )
    assert without < MNIST.epsilon(1000, accountant=runs.PUBLISHED) == pytest.approx(0.877, abs=1e-3)
    assert MNIST.epsilon(0, accountant=runs.PROVEN) > 0


def test_epsilon_of_figure_2_is_the_one_that_was_measured_with_its_runs() -> None:
    setting = runs.on_mnist(noise=4.0, components=7.0, delta=1e-5)
    assert setting.epsilon(1000, accountant=runs.PUBLISHED) == pytest.approx(0.8016716, abs=1e-6)
    assert setting.epsilon(1000, accountant=runs.PROVEN) == pytest.approx(0.5846929, abs=1e-4)


def test_the_papers_example_of_its_theorem_comes_out() -> None:
    found = runs.epsilon_of(
        1800, sampling_probability=0.01, noise=0.9, components=None, accountant=runs.PUBLISHED, delta=1e-5
    )
    assert found == pytest.approx(4.015, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.75, 1.40, 1.96])
def test_most_steps_are_within_and_one_more_is_not(epsilon: float) -> None:
    steps = MNIST.most_steps(epsilon)
    assert MNIST.epsilon(steps, accountant=runs.PUBLISHED) <= epsilon
    assert MNIST.epsilon(steps + 1, accountant=runs.PUBLISHED) > epsilon


def test_where_the_components_alone_cost_too_much_there_are_no_steps() -> None:
    assert MNIST.most_steps(0.1) == 0


def test_a_mean_curve_has_the_steps_that_all_runs_were_looked_at() -> None:
    rows = [[[1, 1, 0.25, 1.0], [2, 2, 0.25, 1.0]], [[2, 2, 0.75, 1.0], [3, 3, 0.5, 1.0]]]
    assert runs.mean_curve([{"trajectory": each} for each in rows]) == [(2, 0.5)]
    assert runs.mean_curve([]) == []


def test_seeds_are_those_asked_for_or_one_for_a_quick_look() -> None:
    assert list(runs.seeds_of(Size(), usual=3)) == [0, 1, 2]
    assert list(runs.seeds_of(Size(is_quick=True), usual=3)) == [0]
    assert list(runs.seeds_of(Size(is_quick=True, seeds=2), usual=3)) == [0, 1]


def test_a_proven_epsilon_in_words_is_rounded_up_and_a_papers_to_the_nearest() -> None:
    assert runs.in_words(1.4041, accountant=runs.PROVEN) == "1.41"
    assert runs.in_words(1.4041, accountant=runs.PUBLISHED) == "1.4"
