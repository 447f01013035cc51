from __future__ import annotations

from typing import Any

import pytest

from experiments import sa_dpsgd
from experiments import sa_dpsgd_runs as presets
from experiments.experiment import Job, Measurement, Outcomes, Size, Statistic, key_of
from experiments.sa_dpsgd import figure1, figure3, table1, table3, with_batch
from experiments.sa_dpsgd_acceptance import Trial, acceptance, search
from experiments.sa_dpsgd_runs import DIGITS, FASHION_MNIST, MNIST, TANH, Setting, runs_of
from experiments.settings import DELTA
from lehr.data.catalogue import data_set_info
from lehr.planning.plan import make_plan
from lehr.training.prepare import build_method
from tests.experiments.made_up_jobs import cells, outcomes_of, shapes_of

FULL, QUICK = Size(), Size(is_quick=True)


def most_steps(setting: Setting, *, epsilon: float, accountant: str | None = "rdp-mironov17") -> int:
    return make_plan(
        epsilon=epsilon,
        delta=DELTA,
        records=setting.records,
        expected_batch_size=setting.batch,
        noise_multiplier=setting.noise_multiplier,
        accountant=accountant,
    ).steps


@pytest.mark.parametrize("setting", [*presets.PAPER, DIGITS], ids=lambda setting: setting.data)
def test_numbers_of_steps_follow_from_the_accountants(setting: Setting) -> None:
    assert setting.steps == most_steps(setting, epsilon=3)
    assert setting.proven_steps == most_steps(setting, epsilon=3, accountant=None)
    if setting in (MNIST, FASHION_MNIST):
        most = most_steps(setting, epsilon=6)
        assert most - setting.evaluate_every < setting.last_step <= most
    assert setting.steps % setting.evaluate_every == setting.last_step % setting.evaluate_every == 0
    assert setting.records == data_set_info(setting.data).records


@pytest.mark.parametrize("batch", sa_dpsgd.OTHER_BATCHES)
def test_another_batch_has_the_most_steps_that_the_published_rule_allows(batch: int) -> None:
    assert with_batch(batch).steps == most_steps(with_batch(batch), epsilon=3)


@pytest.mark.parametrize(
    "setting, published, proven, allowed",
    [
        (MNIST, 2.9998, 2.366, 9.315),
        (FASHION_MNIST, 2.9994, 2.373, 9.393),
        (presets.CIFAR_10, 2.9991, 2.361, 6.448),
    ],
    ids=lambda value: getattr(value, "data", None),
)
def test_the_epsilon_of_the_papers_settings(setting: Setting, published: float, proven: float, allowed: float) -> None:
    assert setting.published_epsilon(setting.steps) == pytest.approx(published, abs=1e-4)
    assert setting.proven_epsilon(setting.steps) == pytest.approx(proven, abs=1e-3)
    assert setting.proven_epsilon(setting.most_candidates) == pytest.approx(allowed, abs=1e-3)


@pytest.mark.parametrize("candidates", [81, 4698, 9000])
def test_the_running_epsilon_is_never_too_small(candidates: int) -> None:
    exact = MNIST.proven_epsilon(candidates)
    assert exact * (1 - 1e-6) <= MNIST.running_epsilon(candidates) <= 1.005 * exact


def test_figure_1_shows_quantiles_over_seeds() -> None:
    [job] = figure1.jobs(FULL)
    assert job == Measurement(function="toy_problems:linear_regression_trajectories", arguments={"seeds": 20})
    ends = [{"excess": 0.1 * n, "candidates": 60 + n, "epsilon": 0.3 + 0.01 * n} for n in range(11)]
    found = {
        "paths": {"SGD": [[-1, 1.5], [2, -1]]},
        "ends": {"SGD, not private": [{"excess": 0.0, "candidates": 60}], "DPSGD": ends},
        "true": [2, -1],
    }
    shown = figure1.report(Outcomes({key_of(job): found}), FULL)
    plain, dpsgd = shown.tables[0].rows
    assert plain == ("SGD, not private", 0.0, None, None, 60, None)
    assert dpsgd[1:] == pytest.approx((0.5, 0.1, 0.9, 65, 0.35))
    assert [line.name for line in shown.charts[0].lines] == ["SGD", "true weights"]


def test_tables_share_their_runs() -> None:
    def keys(jobs: list[Job]) -> set[str]:
        return {key_of(job) for job in jobs}

    assert keys(table3.jobs(FULL)) == keys(figure3.jobs(FULL)) < keys(table1.jobs(FULL))
    assert {key_of(job) for job in presets.proven_runs(MNIST, "dpsgd", range(5))} <= keys(acceptance.jobs(FULL))
    assert {each["seed"] for each in shapes_of(sa_dpsgd.rates.jobs(FULL))} == {sa_dpsgd.SEED}


def trajectory(*, drawn_for_one: int, better: float) -> dict[str, Any]:
    """A run on the digits whose accuracy grows by a thousandth with each accepted candidate."""
    return {"trajectory": [[drawn_for_one * n, n, n / 1000 + better, 1 - n / 1000] for n in range(10, 261, 10)]}


def test_lines_of_figure_3_are_means_and_count_rejected_candidates_along_the_proven_epsilon() -> None:
    plain, annealed = runs_of(DIGITS, TANH, QUICK), runs_of(DIGITS, presets.SEEN, QUICK)
    found = {key_of(run): trajectory(drawn_for_one=1, better=0.1 * run.seed) for run in plain}
    found |= {key_of(run): trajectory(drawn_for_one=3, better=0.2) for run in annealed}
    loss, published, proven = figure3.report(Outcomes(found), QUICK).charts
    first, second = published.lines
    assert (first.y[-1], second.y[-1]) == pytest.approx((0.26 + 0.05, 0.26 + 0.2))
    assert first.x[-1] == second.x[-1] == pytest.approx(DIGITS.published_epsilon(260))
    assert loss.lines[0].y[-1] == pytest.approx(0.74)
    assert [*first.x] == sorted(first.x)
    first, second = proven.lines
    assert second.x[-1] > 1.5 * first.x[-1]
    assert second.y[-1] == pytest.approx(0.26 + 0.2)


@pytest.mark.parametrize("experiment", [acceptance, search], ids=lambda experiment: experiment.name)
def test_acceptance_is_charged_for_every_candidate_and_scored_on_the_other_half(experiment: Any) -> None:
    for job in experiment.jobs(FULL):
        assert build_method(job.config).published is None
        assert job.scored_on == "half"
        assert job.config.privacy.steps == {"mnist": 7245, "fashion-mnist": 1771}[job.config.data.name]
    assert {job.seed for job in experiment.jobs(FULL)} == ({100, 101} if experiment is search else {0, 1, 2, 3, 4})


@pytest.mark.parametrize(
    "others, shown",
    [
        ({1: 0.969, 2: 0.970, 3: 0.973}, "−0.13, p 0.18"),  # a paired t-test of -0.2, -0.2 and 0
        ({0: 0.970, 1: 0.971}, "+0.00, p 1"),
        ({0: 0.970}, None),
    ],
)
def test_differences_are_between_runs_of_one_seed(others: dict[int, float], shown: str | None) -> None:
    base, other = Trial(rate=0.5), Trial(rate=0.5, annealed=True)
    theirs = outcomes_of(
        base.runs(MNIST, range(4)),
        lambda job: {"accuracy": 0.97 + 0.001 * job.seed, "accepted": 7245, "candidates": 7245},
    )
    mine = outcomes_of(
        other.runs(MNIST, others), lambda job: {"accuracy": others[job.seed], "accepted": 5000, "candidates": 7245}
    )
    table = acceptance.report(Outcomes({**theirs.by_key, **mine.by_key}), FULL).tables[0]
    row = cells(table, other.title)
    assert row["accuracy"] == Statistic(tuple(others.values()))
    assert row["accepted"] == Statistic((5000 / 7245,) * len(others))
    assert (row["against DPSGD, paper's rate"], row["against DPSGD, chosen"]) == (shown, None)
