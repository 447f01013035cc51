from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import stats

from experiments import tan, tan_figures, tan_runs
from experiments.experiment import Outcome, Outcomes, Size, Statistic, key_of
from experiments.store import ResultFile, outcomes_in
from experiments.tan_runs import Setting, constant_eta, epsilons
from experiments.training import train
from lehr.optim.averaging import ExponentialAverage
from tests.experiments.made_up_jobs import shapes_of

WHOLE, QUICK = Size(), Size(is_quick=True)
NOTHING = Outcomes({})
KEPT = Path(__file__).parents[2] / "experiments/results/papers"
CIFAR = Setting(batch=4096, records=50_000, steps=2500, noise_multiplier=3.0, delta=1e-5)


def test_smaller_batches_simulate_the_reference() -> None:
    small, whole, fewer = (
        shapes_of(tan_runs.runs(WHOLE, batch=batch, records=records))[0]
        for batch, records in ((64, 50_000), (4096, 50_000), (4096, 25_000))
    )
    assert (small["expected_batch_size"], small["noise_multiplier"], small["simulated_batch_size"]) == (4096, 3, 64)
    assert "simulated_batch_size" not in whole
    assert (fewer["records"], fewer["delta"]) == (25_000, pytest.approx(2e-5))
    [quick] = shapes_of(tan_runs.runs(QUICK, batch=512))
    assert (quick["data"], quick["noise_multiplier"]) == ("digits", 3)
    assert quick["expected_batch_size"] / quick["simulated_batch_size"] == 8


@pytest.mark.parametrize("network", [tan_runs.WIDE_RESNET, tan_runs.VIT, tan_runs.NF_RESNET], ids=lambda each: each[0])
def test_every_quick_network_can_be_trained(network: tan_runs.Network) -> None:
    [job] = tan_runs.runs(QUICK, batch=256, steps=60, network=network)
    outcome = train(job, device="cpu", data_dir=None)
    assert outcome["candidates"] == 2
    assert outcome["epsilon_simulated"] > 1


@pytest.mark.parametrize(
    "setting, expected",
    [(tan.REFERENCE, (7.954, 8.215, 7.465)), (tan.BEST, (7.980, 8.215, 7.486)), (CIFAR, (7.10, 7.48, 6.58))],
)
def test_the_papers_settings_cost_what_three_rules_say(setting: Setting, expected: tuple[float, ...]) -> None:
    assert epsilons(setting) == pytest.approx(expected, abs=5e-3)


def test_a_line_of_figure_2_keeps_eta_and_rises_where_noise_is_small() -> None:
    line = constant_eta(device="cpu", data_dir=None, eta=0.95, steps=64)
    ratios = [q / noise for q, noise in zip(line["sampling_probability"], line["noise_multiplier"], strict=True)]
    assert ratios == pytest.approx([math.sqrt(2 / 64) * 0.95] * len(ratios))
    assert line["epsilon"] == sorted(line["epsilon"], reverse=True)
    assert all(tight < own for tight, own in zip(line["epsilon"], line["epsilon_balle20"], strict=True))
    low, high = tan_figures.figure2.report(outcomes_in(ResultFile.read(KEPT / "tan_figure2.json")), WHOLE).tables
    for table, limit in ((low, 0.78), (high, 6.98)):
        longest = [row[-1] for row in table.rows if isinstance(row[-1], float)]
        assert longest[0] > 4 * longest[-1] == pytest.approx(4 * limit, abs=0.08)


def test_the_approximation_of_figure_3_is_fair_from_noise_2_on_and_not_below_1() -> None:
    shown = tan_figures.figure3.report(NOTHING, WHOLE)
    columns = {column.title: index for index, column in enumerate(shown.tables[0].columns)}
    [row] = [row for row in shown.tables[0].rows if row[0] == 16]
    half, one, two, four = (float(str(row[columns[f"σ = {noise}"]])) for noise in ("0.5", "1", "2", "4"))
    assert 1 < four < two < 1.2
    assert half > one > 1000
    whole, near = shown.charts
    assert len(whole.lines) == 5
    assert max(value for line in near.lines for value in line.y) < 2


def short_line(by_batch: dict[int, tuple[float, ...]]) -> Outcomes:
    """A line of 600 steps with these accuracies."""
    found: dict[str, Outcome] = {}
    for batch, accuracies in by_batch.items():
        for job, accuracy in zip(tan_runs.SHORT.make(WHOLE, batch), accuracies, strict=False):
            found[key_of(job)] = {"accuracy": accuracy, "epsilon_proven": 1.0}
    return Outcomes(found)


def by_law(batch: int) -> tuple[float, ...]:
    """Two accuracies around 50 % − 640 points / batch."""
    return (0.495 - 6.4 / batch, 0.505 - 6.4 / batch)


def test_the_law_of_small_batches_predicts_the_reference() -> None:
    small = {batch: by_law(batch) for batch in (64, 128, 256, 512)}
    outcomes = short_line({**small, 1024: (0.0,), 4096: (0.50, 0.49)})
    [row] = tan_runs.predictions([tan_runs.SHORT], outcomes, WHOLE).rows
    assert row[1:3] == (8, "50.0 − 640/B")
    assert (row[3], row[5]) == pytest.approx((1.0, 0.5 - 6.4 / 4096))
    assert (row[4], row[7], row[10]) == (Statistic((0.50, 0.49)), "yes", "no")
    [row] = tan_runs.predictions([tan_runs.SHORT], short_line({**small, 4096: (0.3,)}), WHOLE).rows
    assert row[7] == "no"


def test_every_batch_is_predicted_from_the_others_by_both_laws() -> None:
    outcomes = short_line({batch: by_law(batch) for batch in (64, 128, 256, 512, 4096)})
    table = tan_runs.left_out([tan_runs.SHORT], outcomes, WHOLE)
    rows = dict(zip(tan_runs.SHORT.batches, table.rows, strict=True))
    assert [row[2] for row in table.rows] == [*rows]
    assert all(row[4] == pytest.approx(0.5 - 6.4 / batch) for batch, row in rows.items())
    assert [rows[batch][6] for batch in (64, 512, 4096)] == ["yes"] * 3
    assert (rows[64][9], rows[4096][9]) == ("no", "no")
    assert rows[1024][6] is None
    others = [(batch, value) for batch in (64, 128, 256, 512) for value in by_law(batch)]
    fitted = stats.linregress([math.log2(batch) for batch, _ in others], [value for _, value in others])
    assert rows[4096][7] == pytest.approx(fitted.intercept + 12 * fitted.slope)


def test_a_simulation_shows_the_epsilon_of_its_own_noise() -> None:
    assert tan_runs.own_epsilon({"epsilon_proven": None, "epsilon_simulated": 30.0}) == 30.0
    assert tan_runs.own_epsilon({"epsilon_proven": 8.0}) == 8.0
    kept = ResultFile.read(KEPT / "tan_figure4.json").entries.values()
    by_batch = {entry["job"].get("simulated_batch_size"): entry["result"] for entry in kept}
    assert (tan_runs.own_epsilon(by_batch[64]) or 0.0) > 1000
    assert tan_runs.setting_of(64, 600).noise_multiplier == pytest.approx(3 / 64)


def test_both_decays_are_one_average_until_the_step_in_the_note() -> None:
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
