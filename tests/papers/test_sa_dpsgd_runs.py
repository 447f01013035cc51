"""The runs of SA-DPSGD's tables have the settings that its paper prints, and the steps that its rule allows."""

from __future__ import annotations

import pytest

from lehr import networks
from lehr.data.known import named
from lehr.methods import by_name
from lehr.papers.experiment import Size
from lehr.papers.job import key_of
from lehr.papers.sa_dpsgd_runs import (
    AUTO_S,
    CIFAR_10,
    DELTA,
    DIGITS,
    FASHION_MNIST,
    HALF,
    KEPT,
    MNIST,
    PAPER,
    RELU,
    SCHEMES,
    SEEN,
    TANH,
    WITHOUT_MOMENTUM,
    Scheme,
    Setting,
    compared_runs,
    plain_run,
    proven_run,
    run_of,
    settings_of,
)
from lehr.planning.plan import make_plan

each_setting = pytest.mark.parametrize("setting", [*PAPER, DIGITS], ids=lambda setting: setting.data)
each_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.title)


def most_steps(setting: Setting, *, epsilon: float, accountant: str | None) -> int:
    return make_plan(
        epsilon=epsilon,
        delta=DELTA,
        records=setting.records,
        expected_batch_size=setting.batch,
        noise_multiplier=setting.noise_multiplier,
        accountant=accountant,
    ).steps


@each_setting
def test_the_steps_are_the_most_that_the_published_rule_allows_at_3(setting: Setting) -> None:
    assert setting.steps == most_steps(setting, epsilon=3, accountant="rdp-mironov17")


@each_setting
def test_the_charged_candidates_are_the_most_that_are_proven_at_3(setting: Setting) -> None:
    assert setting.proven_steps == most_steps(setting, epsilon=3, accountant=None)


@pytest.mark.parametrize("setting", [MNIST, FASHION_MNIST], ids=lambda setting: setting.data)
def test_dpsgd_runs_to_the_last_evaluation_within_a_published_6(setting: Setting) -> None:
    most = most_steps(setting, epsilon=6, accountant="rdp-mironov17")
    assert most - setting.evaluate_every < setting.last_step <= most


@each_setting
def test_there_is_an_evaluation_where_the_published_epsilon_is_3_and_at_the_end(setting: Setting) -> None:
    assert setting.steps % setting.evaluate_every == 0
    assert setting.last_step % setting.evaluate_every == 0
    assert setting.last_step / setting.evaluate_every <= 350


@each_setting
def test_the_number_of_records_is_that_of_the_data_set(setting: Setting) -> None:
    assert setting.records == named(setting.data).records


@pytest.mark.parametrize(
    "setting, rate, batch, noise, threshold",
    [(MNIST, 0.5, 512, 1.23, 10), (FASHION_MNIST, 4.0, 2048, 2.15, 10), (CIFAR_10, 1.0, 1024, 1.54, 5)],
)
def test_settings_are_those_of_table_2(setting: Setting, rate: float, batch: int, noise: float, threshold: int) -> None:
    run = run_of(setting, SEEN, 0)
    assert (run.expected_batch_size, run.noise_multiplier, run.delta) == (batch, noise, 1e-5)
    assert run.settings == {
        "learning_rate": rate,
        "clip_norm": 0.1,
        "momentum": 0.9,
        "initial_inverse_temperature": 10.0,
        "rejection_threshold": threshold,
        "accounting": "published",
    }


@each_setting
@each_scheme
def test_every_method_and_network_can_be_built(setting: Setting, scheme: Scheme) -> None:
    run = run_of(setting, scheme, 0)
    assert by_name.named(run.method, **run.settings).name == run.method
    name, arguments = run.network
    parameters = sum(value.numel() for value in networks.build(name, **arguments).parameters())
    assert parameters == {"paper_cnn": 26_010, "pooled_cnn": 550_570, "small_cnn": 6090}[name]


def test_only_the_first_scheme_has_relu() -> None:
    assert [run_of(MNIST, scheme, 0).network[1]["activation"] for scheme in SCHEMES] == ["relu", *["tanh"] * 5]


def test_annealed_runs_end_at_a_published_3_and_say_which_records_they_are_scored_on() -> None:
    assert [run_of(MNIST, scheme, 0).steps for scheme in (RELU, TANH, AUTO_S)] == [17_658] * 3
    assert [run_of(MNIST, scheme, 0).steps for scheme in (KEPT, SEEN, HALF)] == [4698] * 3
    assert [run_of(MNIST, scheme, 0).scored_on for scheme in SCHEMES] == ["all"] * 3 + ["seen", "seen", "half"]


def test_a_rejection_takes_the_momentum_back_unless_the_scheme_says_that_it_is_kept() -> None:
    kept = [scheme for scheme in SCHEMES if run_of(MNIST, scheme, 0).settings.get("keeps_momentum")]
    assert kept == [KEPT]


def test_only_what_says_so_has_no_momentum() -> None:
    assert {run.settings["momentum"] for run in compared_runs(Size())} == {0.9}
    still = run_of(MNIST, WITHOUT_MOMENTUM, 0)
    assert (still.settings["momentum"], still.steps) == (0.0, 4698)


def test_the_learning_rate_is_constant_so_that_a_prefix_of_a_run_is_the_shorter_run() -> None:
    assert not any("schedule" in run.settings or run.averaging for run in compared_runs(Size()))


def test_five_seeds_on_mnist_and_fashion_mnist_and_three_on_cifar_10() -> None:
    counts = {setting.data: 0 for setting in PAPER}
    for run in compared_runs(Size()):
        counts[run.data] += 1
    assert counts == {"mnist": 30, "fashion-mnist": 30, "cifar-10": 18}


def test_jobs_of_the_first_seed_come_first_and_what_the_paper_prints_before_what_it_does_not() -> None:
    runs = compared_runs(Size())
    assert [run.scored_on == "half" for run in runs] == sorted(run.scored_on == "half" for run in runs)
    printed = [run.seed for run in runs if run.scored_on != "half"]
    assert printed == sorted(printed)


def test_other_numbers_of_seeds_and_a_quick_size_can_be_asked_for() -> None:
    assert {run.seed for run in compared_runs(Size(seeds=2))} == {0, 1}
    assert {run.data for run in compared_runs(Size(is_quick=True))} == {"digits"}
    assert settings_of(Size(is_quick=True)) == (DIGITS,)


def test_every_job_is_another() -> None:
    runs = compared_runs(Size())
    assert len({key_of(run) for run in runs}) == len(runs) == 78


def test_runs_at_a_proven_3_charge_every_candidate() -> None:
    run = proven_run(CIFAR_10, "sa-dpsgd", 0)
    assert run.settings == {"learning_rate": 1.0, "rejection_threshold": 5}
    assert (run.steps, run.scored_on) == (2228, "half")
    assert proven_run(CIFAR_10, "dpsgd", 0).settings == {"learning_rate": 1.0}


def test_the_run_without_privacy_has_no_noise() -> None:
    run = plain_run(MNIST, 0)
    assert (run.method, run.noise_multiplier) == ("plain-sgd", None)
    assert not by_name.named(run.method, **run.settings).is_private
