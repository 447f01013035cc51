"""The plans of the tempered sigmoids' runs against the paper's ε, and the jobs' words."""

from __future__ import annotations

import pytest

from lehr.accounting import ACCOUNTANTS
from lehr.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.methods.by_name import named
from lehr.networks.activations import activation_named
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import key_of
from lehr.papers.tempered_sigmoids_runs import (
    ACTIVATIONS,
    CHOSEN,
    CIFAR,
    DELTA,
    FASHION,
    MNIST,
    QUICK,
    SEARCH_SEED,
    SETTINGS,
    TANH,
    TEMPERED,
    Setting,
    Step,
    accuracies_of,
    grid_of,
    plain,
    private,
    private_adam,
    seeds_of,
    settings_of,
)


@pytest.mark.parametrize("setting, digits", [(MNIST, 2), (FASHION, 1), (CIFAR, 2)])
def test_the_plan_costs_what_the_paper_prints_by_the_accountant_of_its_time(setting: Setting, digits: int) -> None:
    step = PoissonSampled(setting.batch / setting.records, Gaussian(setting.noise_multiplier))
    whole, adjacency = Repeated(step, setting.steps), Adjacency.ADD_OR_REMOVE_ONE
    published = ACCOUNTANTS["rdp-mironov17"].epsilon(whole, delta=DELTA, adjacency=adjacency)
    assert round(published, digits) == setting.epsilon


@pytest.mark.parametrize("setting, epochs", [(MNIST, 60), (FASHION, 40), (CIFAR, 60)])
def test_the_steps_are_whole_epochs_to_within_one_step(setting: Setting, epochs: int) -> None:
    assert abs(setting.steps - epochs * setting.records / setting.batch) <= 1


@pytest.mark.parametrize("setting", [*SETTINGS, QUICK], ids=lambda setting: setting.data)
def test_a_run_is_evaluated_about_a_hundred_times_and_a_quick_one_less_often(setting: Setting) -> None:
    evaluations = -(-setting.steps // setting.evaluate_every)
    assert 80 <= evaluations <= 130 if setting is not QUICK else evaluations == 10


@pytest.mark.parametrize("setting", [*SETTINGS, QUICK], ids=lambda setting: setting.data)
def test_every_activation_has_a_step_that_was_in_the_search(setting: Setting) -> None:
    assert set(CHOSEN[setting.data]) == set(ACTIVATIONS)
    for activation in ACTIVATIONS:
        assert CHOSEN[setting.data][activation] in grid_of(setting)


def test_the_seed_of_the_search_is_in_no_table() -> None:
    assert all(SEARCH_SEED not in seeds_of(setting, Size()) for setting in SETTINGS)
    assert [len(seeds_of(setting, Size())) for setting in SETTINGS] == [5, 5, 3]
    assert [*seeds_of(MNIST, Size(seeds=2))] == [0, 1]


def test_a_quick_size_has_a_data_set_that_needs_no_files() -> None:
    assert settings_of(Size(is_quick=True)) == (QUICK,)
    assert settings_of(Size()) == SETTINGS
    assert QUICK.data == "digits"


@pytest.mark.parametrize("setting", [*SETTINGS, QUICK], ids=lambda setting: setting.data)
def test_networks_and_methods_know_the_words_of_the_jobs(setting: Setting) -> None:
    jobs = [private(setting, activation, 0) for activation in ACTIVATIONS]
    jobs += [plain(setting, TANH, 0), private_adam(setting, TANH, 0, learning_rate=1e-3, clip_norm=1.0)]
    for job in jobs:
        activation_named(job.network[1]["activation"])
        assert named(job.method, **job.settings).is_private is (job.noise_multiplier is not None)


def test_the_best_triplet_is_that_of_the_data_set() -> None:
    words = [setting.word(TEMPERED) for setting in (*SETTINGS, QUICK)]
    best = ("mnist", "fashion-mnist", "cifar-10", "mnist")
    assert words == [f"tempered_sigmoid({data})" for data in best]
    assert MNIST.word(TANH) == "tanh"


def test_a_step_of_its_own_takes_the_place_of_the_chosen_one() -> None:
    own = Step(learning_rate=0.17, clip_norm=1.0, momentum=0.0)
    job = private(MNIST, TANH, 3, step=own)
    assert job.settings == {"learning_rate": 0.17, "clip_norm": 1.0, "momentum": 0.0}
    assert (job.seed, job.expected_batch_size, job.steps, job.noise_multiplier) == (3, 256, 14_062, 1.118)
    assert key_of(job) != key_of(private(MNIST, TANH, 3))


def test_accuracies_are_those_of_the_runs_that_are_there() -> None:
    there, missing = private(MNIST, TANH, 0), private(MNIST, TANH, 1)
    outcomes = Outcomes({key_of(there): {"accuracy": 0.97}})
    assert accuracies_of(outcomes, [there, missing]).values == (0.97,)
