from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments import tan, tan_figures, tan_runs
from experiments.experiment import Cell, Experiment, Outcome, Outcomes, Size, Statistic, key_of
from experiments.store import ResultFile, outcomes_in
from experiments.tan_runs import Setting, constant_eta, divergence_ratios, epsilons
from experiments.training import train
from tests.experiments.made_up_jobs import words_of

WHOLE, QUICK = Size(), Size(is_quick=True)
NOTHING = Outcomes({})


def test_a_smaller_batch_simulates_the_reference_and_the_reference_itself_does_not() -> None:
    small, whole = (words_of(tan_runs.runs(WHOLE, batch=batch))[0] for batch in (64, 4096))
    assert (small["expected_batch_size"], small["noise_multiplier"], small["simulated_batch_size"]) == (4096, 3, 64)
    assert "simulated_batch_size" not in whole


def test_fewer_records_have_a_larger_delta_in_proportion() -> None:
    words = words_of(tan_runs.runs(WHOLE, batch=4096, records=25_000))[0]
    assert words["records"] == 25_000
    assert words["delta"] == pytest.approx(2e-5)


def test_a_quick_job_keeps_the_ratio_of_noise_to_batch_and_is_another_job() -> None:
    [quick], whole = (words_of(tan_runs.runs(size, batch=512)) for size in (QUICK, WHOLE))
    assert quick["data"] == "digits"
    assert quick["noise_multiplier"] == whole[0]["noise_multiplier"]
    assert quick["expected_batch_size"] / quick["simulated_batch_size"] == 8


@pytest.mark.parametrize("network", [tan_runs.WIDE_RESNET, tan_runs.VIT, tan_runs.NF_RESNET], ids=lambda each: each[0])
def test_every_quick_network_can_be_trained(network: tan_runs.Network) -> None:
    [job] = tan_runs.runs(QUICK, batch=256, steps=60, network=network)
    outcome = train(job, device="cpu", data_dir=None)
    assert outcome["candidates"] == 2
    assert outcome["epsilon_simulated"] > 1


CIFAR = Setting(batch=4096, records=50_000, steps=2500, noise_multiplier=3.0, delta=1e-5)


@pytest.mark.parametrize(
    "setting, expected",
    [(tan.REFERENCE, (7.954, 8.215, 7.465)), (tan.BEST, (7.980, 8.215, 7.486)), (CIFAR, (7.10, 7.48, 6.58))],
)
def test_the_papers_settings_cost_what_three_rules_say(setting: Setting, expected: tuple[float, ...]) -> None:
    assert epsilons(setting) == pytest.approx(expected, abs=5e-3)


def test_eta_is_that_of_the_estimate() -> None:
    root = math.sqrt(-math.log(CIFAR.delta))
    assert CIFAR.eta**2 + 2 * CIFAR.eta * root == pytest.approx(epsilons(CIFAR)[1])


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


KEPT = Path(__file__).parents[2] / "experiments/results/papers"


def made_up(by_batch: dict[int, tuple[float, ...]]) -> Outcomes:
    """A line of 600 steps with these accuracies."""
    found: dict[str, Outcome] = {}
    for batch, accuracies in by_batch.items():
        jobs = tan_runs.SHORT.runs(WHOLE, batch)
        for job, accuracy in zip(jobs, accuracies, strict=False):
            found[key_of(job)] = {"accuracy": accuracy, "epsilon_proven": 1.0}
    return Outcomes(found)


def test_the_line_through_small_batches_is_held_against_what_the_reference_reached() -> None:
    rising = {batch: (0.40 + 0.01 * place, 0.41 + 0.01 * place) for place, batch in enumerate((64, 128, 256, 512))}
    outcomes = made_up({**rising, 1024: (0.0,), 4096: (0.475, 0.465)})
    [row] = tan_runs.predictions([tan_runs.SHORT], outcomes, WHOLE).rows
    assert row[1:3] == (8, "+1.00 points")
    assert row[3] == pytest.approx(0.465)
    assert row[5] == pytest.approx(1.0)
    assert row[6:] == (Statistic((0.475, 0.465)), "yes")


def test_an_outcome_that_is_not_in_the_interval_is_said_to_be_outside() -> None:
    rising = {batch: (0.40 + 0.01 * place, 0.401 + 0.01 * place) for place, batch in enumerate((64, 128, 256, 512))}
    [row] = tan_runs.predictions([tan_runs.SHORT], made_up({**rising, 4096: (0.3,)}), WHOLE).rows
    assert row[7] == "no"


def test_without_runs_there_are_no_accuracies_and_no_chart_and_the_references_cost_is_known() -> None:
    table = tan_runs.accuracies([tan_runs.LONG], NOTHING, WHOLE)
    assert all(row[4] == Statistic(()) for row in table.rows)
    assert [row[3] for row in table.rows[:-1]] == [None] * 5
    assert table.rows[-1][3] == pytest.approx(6.58, abs=5e-3)
    assert tan_runs.chart("law", [tan_runs.LONG], NOTHING, WHOLE) == ()


def test_the_kept_runs_mispredict_the_reference_and_bend() -> None:
    outcomes = outcomes_in(ResultFile.read(KEPT / "tan_figure4.json"))
    [row] = tan_runs.predictions([tan_runs.SHORT], outcomes, WHOLE).rows
    assert row[1:3] == (12, "+1.48 points")
    assert row[3] == pytest.approx(0.674, abs=5e-4)
    assert row[4] == "64.5 to 70.3"
    assert row[5] == pytest.approx(0.026, abs=5e-4)
    assert row[7] == "no"
    [chart] = tan_runs.chart("law", [tan_runs.SHORT, tan_runs.LONG], outcomes, WHOLE)
    assert [line.is_scattered for line in chart.lines] == [True, False, False, True]


def test_the_epsilon_of_a_simulation_itself_is_no_proven_one() -> None:
    assert tan_runs.own_epsilon({"epsilon_proven": None, "epsilon_simulated": 30.0}) == 30.0
    assert tan_runs.own_epsilon({"epsilon_proven": 8.0}) == 8.0


def test_a_run_that_simulates_costs_what_its_small_noise_says() -> None:
    kept = ResultFile.read(KEPT / "tan_figure4.json")
    by_batch = {entry["job"].get("simulated_batch_size"): entry["result"] for entry in kept.entries.values()}
    assert (tan_runs.own_epsilon(by_batch[64]) or 0.0) > 1000
    assert tan_runs.setting_of(64, 600).noise_multiplier == pytest.approx(3 / 64)


def test_figure_2_shows_the_wall_of_the_kept_lines() -> None:
    shown = tan_figures.figure2.report(outcomes_in(ResultFile.read(KEPT / "tan_figure2.json")), WHOLE)
    low, high = shown.tables
    assert [row[0] for row in low.rows] == [0.5, 1.0, 2.0, 4.0, 8.0]
    for table, limit in ((low, 0.78), (high, 6.98)):
        longest = [row[-1] for row in table.rows if isinstance(row[-1], float)]
        assert len(longest) == 5
        assert longest == sorted(longest, reverse=True)
        assert longest[0] > 4 * longest[-1]
        assert longest[-1] == pytest.approx(limit, abs=0.02)
    assert [len(chart.lines) for chart in shown.charts] == [8, 8]


def test_figure_3_needs_no_run() -> None:
    assert tan_figures.figure3.jobs(WHOLE) == []
    shown = tan_figures.figure3.report(NOTHING, WHOLE)
    whole, near = shown.charts
    assert len(whole.lines) == 5
    assert max(value for line in near.lines for value in line.y) < 2


def test_the_kept_accuracies_are_those_that_were_measured() -> None:
    order = tan_figures.figure5.report(outcomes_in(ResultFile.read(KEPT / "tan_figure5.json")), WHOLE).tables[0].rows
    means = [round(100 * cell.mean, 1) for row in order for cell in row if isinstance(cell, Statistic) and cell.mean]
    assert means == [61.5, 49.2, 63.0, 49.1, 63.4, 49.1]
    rates = tan_figures.rates.report(outcomes_in(ResultFile.read(KEPT / "tan_rates.json")), WHOLE).tables[0].rows
    assert [row[3] for row in rates] == [0.6097, 0.6352, 0.5908, 0.4230, 0.4786, 0.5125, 0.5049, None, 0.4318]


def made_up_accuracy(experiment: Experiment, accuracy: Callable[[dict[str, Any]], float]) -> Outcomes:
    return Outcomes({key_of(job): {"accuracy": accuracy(job.to_json())} for job in experiment.jobs(WHOLE)})


def mean(cell: Cell) -> float | None:
    assert isinstance(cell, Statistic)
    return cell.mean


def test_table_4_prints_what_the_paper_does_beside_three_rules() -> None:
    printed, small = tan.table4.report(NOTHING, WHOLE).tables
    assert [row[3] for row in printed.rows] == [8.00, 7.97]
    assert printed.rows[1][4:7] == pytest.approx((7.954, 8.215, 7.465), abs=5e-4)
    assert [row[:3] for row in small.rows] == [(150, 8192, 16.0), (600, 4096, 4.0)]


def test_table_5_costs_are_those_of_the_settings_and_not_the_printed_ones() -> None:
    [table] = tan.table5.report(NOTHING, WHOLE).tables
    by_records = {row[0]: row for row in table.rows}
    assert by_records[50_000][2:5] == pytest.approx((7.10, 7.48, 6.58), abs=5e-3)
    found = [by_records[records][2] for records in (40_000, 25_000, 5_000)]
    assert found == pytest.approx([9.16, 16.25, 158.53], abs=5e-3)
    assert [by_records[records][1] for records in (40_000, 25_000, 5_000)] == [7.3, 13.7, 150.3]


def test_table_5_puts_full_runs_and_simulations_apart() -> None:
    outcomes = made_up_accuracy(
        tan.table5, lambda job: 0.6 + job["seed"] / 100 if "simulated_batch_size" in job else 0.7
    )
    [table] = tan.table5.report(outcomes, WHOLE).tables
    for row in table.rows:
        assert mean(row[6]) == pytest.approx(0.7)
        assert mean(row[7]) == pytest.approx(0.61)


def test_table_6_costs_are_near_the_printed_ones() -> None:
    half, whole = tan.table6.report(NOTHING, WHOLE).tables[0].rows
    assert half[3:6] == pytest.approx((17.87, 17.95, 16.84), abs=5e-3)
    assert whole[3:6] == pytest.approx((7.954, 8.215, 7.465), abs=5e-4)


def test_the_average_of_weights_is_the_same_for_both_decays_until_the_step_that_is_said() -> None:
    from lehr.optim.averaging import ExponentialAverage

    usual, slow = ExponentialAverage(decay=0.999), ExponentialAverage(decay=0.99999)
    assert usual.share(8989) == slow.share(8989)
    assert usual.share(8991) != slow.share(8991)
    assert "8990" in tan.table2.report(NOTHING, WHOLE).tables[1].notes[0]


def test_rows_of_table_3_have_one_eta_and_the_printed_batch_of_756_has_another() -> None:
    etas = [row.small_setting.eta for row in tan.SAME_ETA]
    assert etas == pytest.approx([etas[2]] * 4, rel=1e-3)
    printed = [tan_runs.imagenet(batch=64 * row.batch, steps=row.steps).eta for row in tan.SAME_ETA]
    assert printed[1:] == pytest.approx([printed[2]] * 3)
    assert printed[0] / printed[2] == pytest.approx(756 / 724, abs=1e-3)
