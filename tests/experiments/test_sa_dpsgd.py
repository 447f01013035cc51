from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from experiments import costs, sa_dpsgd
from experiments import sa_dpsgd_runs as presets
from experiments.experiment import Cell, Job, Measurement, Outcomes, Size, Statistic, Table, Training, key_of
from experiments.sa_dpsgd import ACCEPTED, ACCURACY, CANDIDATES, figure1, figure3, table1, table3, with_batch
from experiments.sa_dpsgd_acceptance import Tried, acceptance, search
from experiments.sa_dpsgd_runs import DIGITS, KEPT, MNIST, TANH, Setting, proven_epsilon, published_epsilon, runs_of
from lehr.data.catalogue import data_set_info
from lehr.planning.plan import make_plan
from lehr.reports.chart import Chart
from lehr.training.prepare import build_method
from tests.experiments.made_up_jobs import words_of

FULL, QUICK = Size(), Size(is_quick=True)

each_setting = pytest.mark.parametrize("setting", [*presets.PAPER, DIGITS], ids=lambda setting: setting.data)


def most_steps(setting: Setting, *, epsilon: float, accountant: str | None = "rdp-mironov17") -> int:
    return make_plan(
        epsilon=epsilon,
        delta=costs.DELTA,
        records=setting.records,
        expected_batch_size=setting.batch,
        noise_multiplier=setting.noise_multiplier,
        accountant=accountant,
    ).steps


@each_setting
def test_the_numbers_of_steps_follow_from_the_accountants(setting: Setting) -> None:
    assert setting.steps == most_steps(setting, epsilon=3)
    assert setting.proven_steps == most_steps(setting, epsilon=3, accountant=None)
    if setting in (MNIST, presets.FASHION_MNIST):
        most = most_steps(setting, epsilon=6)
        assert most - setting.evaluate_every < setting.last_step <= most


@each_setting
def test_there_is_an_evaluation_where_the_published_epsilon_is_3_and_at_the_end(setting: Setting) -> None:
    assert setting.steps % setting.evaluate_every == 0
    assert setting.last_step % setting.evaluate_every == 0
    assert setting.records == data_set_info(setting.data).records


def test_annealed_runs_end_at_a_published_3_and_a_rejection_takes_the_momentum_back_unless_it_is_kept() -> None:
    words = [presets.run_of(MNIST, scheme, 0).to_json() for scheme in presets.SCHEMES]
    assert [each["steps"] for each in words] == [17_658] * 3 + [4698] * 3
    assert [each.get("scored_on") for each in words] == [None] * 3 + ["seen", "seen", "half"]
    assert [
        scheme for scheme, each in zip(presets.SCHEMES, words, strict=True) if "keeps_momentum" in each["settings"]
    ] == [KEPT]


def test_the_learning_rate_is_constant_so_that_a_prefix_of_a_run_is_the_shorter_run() -> None:
    jobs = words_of(table3.jobs(FULL))
    assert len(jobs) == 78
    assert not any("schedule" in each["settings"] or "averaging" in each for each in jobs)


@pytest.mark.parametrize(
    "setting, published, proven, allowed",
    [
        (MNIST, 2.9998, 2.366, 9.315),
        (presets.FASHION_MNIST, 2.9994, 2.373, 9.393),
        (presets.CIFAR_10, 2.9991, 2.361, 6.448),
    ],
    ids=lambda value: getattr(value, "data", None),
)
def test_the_papers_settings_cost_this_much(setting: Setting, published: float, proven: float, allowed: float) -> None:
    assert published_epsilon(setting, setting.steps) == pytest.approx(published, abs=1e-4)
    assert proven_epsilon(setting, setting.steps) == pytest.approx(proven, abs=1e-3)
    assert proven_epsilon(setting, presets.most_candidates(setting)) == pytest.approx(allowed, abs=1e-3)


@pytest.mark.parametrize("candidates", [81, 4698, 9000])
def test_the_cost_on_the_way_is_never_less_and_within_half_a_percent(candidates: int) -> None:
    exact, quick = proven_epsilon(MNIST, candidates), presets.proven_on_the_way(MNIST, candidates)
    assert exact * (1 - 1e-6) <= quick <= 1.005 * exact


# --- Tables 1 and 3, and Figure 1 -----------------------------------------------------------------------------------


def outcome(*rows: list[float]) -> dict[str, Any]:
    """A run with such a trajectory: candidates, accepted, accuracy, loss."""
    candidates, accepted, accuracy, loss = rows[-1]
    told = {"candidates": candidates, "accepted": accepted, "accuracy": accuracy, "loss": loss}
    return {**told, "trajectory": [*rows], "epsilon_of_candidates_drawn": 2.9}


def outcomes_of(jobs: list[Training], make: Callable[[Training], dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): make(job) for job in jobs})


def cells(table: Table, *starts: Cell) -> dict[str, Any]:
    """The only row that starts so, by the titles of its columns."""
    [row] = [row for row in table.rows if row[: len(starts)] == starts]
    return dict(zip([column.title for column in table.columns], row, strict=True))


def test_table_1_reads_the_accuracy_at_a_published_3_off_a_longer_run() -> None:
    found = outcomes_of(
        runs_of(MNIST, TANH, FULL),
        lambda job: outcome([4698, 4698, 0.97 + 0.001 * job.seed, 0.1], [17_658, 17_658, 0.99, 0.1]),
    )
    row = cells(table1.report(found, FULL).tables[0], TANH.title)
    assert row["ours"].mean == pytest.approx(0.972)
    assert len(row["ours"].values) == 5
    assert row["paper"] == 0.9805
    assert row["published ε"] == pytest.approx(2.9998, abs=1e-4)
    assert row["proven ε"] == pytest.approx(2.366, abs=1e-3)


def test_table_1_says_what_an_annealed_run_drew_and_what_it_might_have_drawn() -> None:
    runs = runs_of(MNIST, KEPT, FULL)[:2]
    found = outcomes_of(runs, lambda job: outcome([6000 + 1000 * job.seed, 4698, 0.983, 0.06]))
    table = table1.report(found, FULL).tables[0]
    row = cells(table, KEPT.title)
    assert row["ours"] == Statistic((0.983, 0.983))
    assert row["candidates drawn"] == Statistic((6000, 7000))
    assert row["proven ε"] == pytest.approx(9.315, abs=1e-3)
    assert cells(table, presets.HALF.title)["ours"] == Statistic(())


def test_table_1_has_runs_at_a_proven_3_that_are_those_of_acceptance() -> None:
    runs = presets.proven_runs(MNIST, "dpsgd", range(5))
    assert {key_of(job) for job in runs} <= {key_of(job) for job in acceptance.jobs(FULL)}
    table = table1.report(outcomes_of(runs[:1], lambda job: outcome([7245, 7245, 0.98, 0.1])), FULL).tables[0]
    assert cells(table, "DPSGD, tanh, at a proven ε of 3")["ours"] == Statistic((0.98,))


def test_an_accuracy_is_only_read_where_it_was_looked_at() -> None:
    found = outcome([81, 80, 0.5, 1.0], [162, 160, 0.6, 0.9], [170, 165, 0.7, 0.8])
    assert [sa_dpsgd.accuracy_at(found, accepted) for accepted in (160, 165, 161)] == [0.6, 0.7, None]


def test_table_3_has_the_mean_cost_where_every_run_reaches_the_accuracy() -> None:
    runs = runs_of(MNIST, TANH, FULL)[:2]
    found = outcomes_of(
        runs, lambda job: outcome([81, 81, 0.9, 1], [162 + 81 * job.seed, 162 + 81 * job.seed, 0.95, 1])
    )
    row = cells(table3.report(found, FULL).tables[0], 0.94, TANH.title)
    assert row["paper, published ε"] == 1.23
    assert row["ours, published ε"] == Statistic(tuple(published_epsilon(MNIST, n) for n in (162, 243)))
    assert row["ours, proven ε"].values == pytest.approx([proven_epsilon(MNIST, n) for n in (162, 243)], rel=5e-3)
    assert row["runs that reached it"] == "2 of 2"


def test_table_3_charges_an_annealed_run_for_what_it_drew_and_says_so() -> None:
    found = outcomes_of(runs_of(MNIST, KEPT, FULL)[:1], lambda job: outcome([405, 100, 0.95, 1]))
    row = cells(table3.report(found, FULL).tables[0], 0.94, KEPT.title)
    assert row["ours, published ε"] == Statistic((published_epsilon(MNIST, 100),))
    assert row["ours, proven ε"].values == pytest.approx([proven_epsilon(MNIST, 405)], rel=5e-3)
    assert "no guarantee" in row["what the proven ε is"]


def test_table_3_has_no_cost_where_a_run_never_reaches_the_accuracy_and_says_how_many_did() -> None:
    found = outcomes_of(
        runs_of(MNIST, presets.RELU, FULL), lambda job: outcome([81, 81, 0.99 if job.seed < 2 else 0.9, 1])
    )
    row = cells(table3.report(found, FULL).tables[0], 0.98, presets.RELU.title)
    assert row["paper, published ε"] == "not within 6"
    assert (row["ours, published ε"], row["ours, proven ε"]) == (None, None)
    assert row["runs that reached it"] == "2 of 5"


def test_figure_1_is_a_measurement_of_this_package_and_drawn_from_its_outcome() -> None:
    [job] = figure1.jobs(FULL)
    assert job == Measurement(function="toy_problems:linear_regression_trajectories", arguments={"seeds": 20})
    ends = [{"excess": 0.1 * place, "candidates": 60 + place, "epsilon": 0.3 + 0.01 * place} for place in range(11)]
    told = {
        "paths": {"SGD": [[-1, 1.5], [2, -1]]},
        "ends": {"SGD, not private": [{"excess": 0.0, "candidates": 60}], "DPSGD": ends},
        "true": [2, -1],
    }
    shown = figure1.report(Outcomes({key_of(job): told}), FULL)
    plain, dpsgd = shown.tables[0].rows
    assert plain == ("SGD, not private", 0.0, None, None, 60, None)
    assert dpsgd[0] == "DPSGD"
    assert dpsgd[1:] == pytest.approx((0.5, 0.1, 0.9, 65, 0.35))
    assert [line.name for line in shown.charts[0].lines] == ["SGD", "true weights"]


def test_tables_1_and_3_and_figure_3_share_their_runs() -> None:
    def keys(jobs: list[Job]) -> set[str]:
        return {key_of(job) for job in jobs}

    assert keys(table3.jobs(FULL)) == keys(figure3.jobs(FULL)) < keys(table1.jobs(FULL))
    assert {each["seed"] for each in words_of(sa_dpsgd.rates.jobs(FULL))} == {sa_dpsgd.SEED}


# --- Figures 3 and 4 ------------------------------------------------------------------------------------------------


def trajectory(*, drawn_for_one: int, better: float) -> dict[str, Any]:
    """A run on the digits whose accuracy grows by a thousandth with each accepted candidate."""
    counts = range(10, 261, 10)
    return {"trajectory": [[drawn_for_one * n, n, n / 1000 + better, 1 - n / 1000] for n in counts]}


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    plain, annealed = runs_of(DIGITS, TANH, QUICK), runs_of(DIGITS, presets.SEEN, QUICK)
    found = {key_of(run): trajectory(drawn_for_one=1, better=0.1 * run.seed) for run in plain}
    found |= {key_of(run): trajectory(drawn_for_one=3, better=0.2) for run in annealed}
    return {chart.element: chart for chart in figure3.report(Outcomes(found), QUICK).charts}


def test_a_line_is_the_mean_over_runs_and_ends_at_the_last_evaluation(charts: dict[str, Chart]) -> None:
    plain, annealed = charts["digits-accuracy-published"].lines
    assert plain.y[-1] == pytest.approx(0.26 + 0.05)
    assert annealed.y[-1] == pytest.approx(0.26 + 0.2)
    assert plain.x[-1] == annealed.x[-1] == pytest.approx(published_epsilon(DIGITS, 260))
    assert charts["digits-loss-published"].lines[0].y[-1] == pytest.approx(0.74)
    assert [*plain.x] == sorted(plain.x)


def test_rejected_candidates_count_along_the_proven_epsilon(charts: dict[str, Chart]) -> None:
    plain, annealed = charts["digits-accuracy-proven"].lines
    assert annealed.x[-1] > 1.5 * plain.x[-1]
    assert annealed.y[-1] == pytest.approx(0.26 + 0.2)


@pytest.mark.parametrize(
    "along, count, value",
    [(ACCEPTED, 9, None), (ACCEPTED, 19, 0.01), (ACCEPTED, 20, 0.02), (CANDIDATES, 20, None), (CANDIDATES, 60, 0.02)],
)
def test_a_run_counts_with_its_last_evaluation_so_far(along: int, count: int, value: float | None) -> None:
    assert sa_dpsgd.value_at(trajectory(drawn_for_one=3, better=0.0), along, count, ACCURACY) == value


@pytest.mark.parametrize("epsilon", [1.5, 3.0])
def test_so_many_accepted_steps_are_the_most_within_a_published_epsilon(epsilon: float) -> None:
    most = sa_dpsgd.most_accepted(MNIST, epsilon)
    assert published_epsilon(MNIST, most) <= epsilon < published_epsilon(MNIST, most + 1)


@pytest.mark.parametrize("batch", sa_dpsgd.STEPS_OF_BATCHES)
def test_a_batch_has_the_most_steps_that_the_published_rule_allows_at_3(batch: int) -> None:
    assert sa_dpsgd.STEPS_OF_BATCHES[batch] == most_steps(with_batch(batch), epsilon=3)


def test_every_sweep_goes_through_the_papers_own_setting_and_moves_one_setting() -> None:
    assert replace(with_batch(256), batch=512, steps=4698, evaluate_every=81) == MNIST
    for sweep in sa_dpsgd.SWEEPS:
        assert [setting for _, setting in sweep.points].count(MNIST) == 1
        assert set(sweep.printed) <= {value for value, _ in sweep.points}


# --- Acceptance -----------------------------------------------------------------------------------------------------


def accepted_outcome(accuracy: float, accepted: int = 7245) -> dict[str, Any]:
    return {"accuracy": accuracy, "accepted": accepted, "candidates": 7245}


@pytest.mark.parametrize("experiment", [acceptance, search], ids=lambda experiment: experiment.name)
def test_every_job_charges_every_candidate_and_is_scored_on_the_other_half(experiment: Any) -> None:
    for job in experiment.jobs(FULL):
        assert build_method(job.config).published is None
        assert job.scored_on == "half"
        assert job.config.privacy.steps == {"mnist": 7245, "fashion-mnist": 1771}[job.config.data.name]
    assert {job.seed for job in experiment.jobs(FULL)} == ({100, 101} if experiment is search else {0, 1, 2, 3, 4})


def test_a_job_has_only_the_words_that_are_given() -> None:
    tried = Tried(rate=4.0, annealed=True, threshold=2, salvage=True, falls_to=0.1, decay=0.99)
    [words] = words_of(tried.runs(presets.FASHION_MNIST, [3]))
    assert words["settings"] == {
        "learning_rate": 4,
        "rejection_threshold": 2,
        "salvage": True,
        "schedule": {"kind": "linear-decay", "steps": 1771, "first": 1, "last": 0.1},
    }
    assert words["averaging"] == {"kind": "exponential", "decay": 0.99}


@pytest.mark.parametrize(
    "others, shown",
    [
        ({1: 0.969, 2: 0.970, 3: 0.973}, "−0.13, p 0.18"),  # a paired t-test of -0.2, -0.2 and 0
        ({0: 0.970, 1: 0.971}, "+0.00, p 1"),
        ({0: 0.970}, None),
    ],
)
def test_differences_are_between_runs_of_one_seed(others: dict[int, float], shown: str | None) -> None:
    base, other = Tried(rate=0.5), Tried(rate=0.5, annealed=True)
    found = outcomes_of(base.runs(MNIST, range(4)), lambda job: accepted_outcome(0.97 + 0.001 * job.seed)).by_key
    mine = outcomes_of(other.runs(MNIST, others), lambda job: accepted_outcome(others[job.seed], 5000)).by_key
    table = acceptance.report(Outcomes({**found, **mine}), FULL).tables[0]
    row = cells(table, other.title)
    assert row["accuracy"] == Statistic(tuple(others.values()))
    assert row["accepted"] == Statistic((5000 / 7245,) * len(others))
    assert (row["against DPSGD, paper's rate"], row["against DPSGD, chosen"]) == (shown, None)
