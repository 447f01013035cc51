from __future__ import annotations

from collections.abc import Callable

import pytest

from lehr.papers import tan
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.table import Cell, Measured
from lehr.papers.tan_epsilons import epsilons

WHOLE, QUICK, NOTHING = Size(), Size(is_quick=True), Outcomes({})
TRAINED = (tan.TABLE2, tan.TABLE3, tan.TABLE4, tan.TABLE5, tan.TABLE6)


def made_up(experiment: Experiment, accuracy: Callable[[Training], float]) -> Outcomes:
    jobs = [job for job in experiment.jobs(WHOLE) if isinstance(job, Training)]
    return Outcomes({key_of(job): {"accuracy": accuracy(job)} for job in jobs})


def mean(cell: Cell) -> float | None:
    assert isinstance(cell, Measured)
    return cell.mean


def test_every_table_and_figure_of_the_paper_is_there() -> None:
    names = [experiment.name for experiment in tan.EXPERIMENTS]
    assert names == [*(f"table{n}" for n in range(1, 7)), *(f"figure{n}" for n in range(1, 8)), "rates"]
    assert {experiment.paper for experiment in tan.EXPERIMENTS} == {"tan"}


@pytest.mark.parametrize("size", [WHOLE, QUICK], ids=["whole", "quick"])
@pytest.mark.parametrize("experiment", tan.EXPERIMENTS[:6], ids=lambda each: each.name)
def test_rows_have_a_cell_for_each_column_and_nothing_is_made_up(experiment: Experiment, size: Size) -> None:
    for table in experiment.shown(NOTHING, size).tables:
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(not cell.values for row in table.rows for cell in row if isinstance(cell, Measured))


@pytest.mark.parametrize("experiment", TRAINED, ids=lambda each: each.name)
def test_quick_jobs_are_other_jobs_and_titles_say_quick(experiment: Experiment) -> None:
    whole, quick = ({key_of(job) for job in experiment.jobs(size)} for size in (WHOLE, QUICK))
    assert quick
    assert not whole & quick
    assert any(table.title.startswith("Quick") for table in experiment.shown(NOTHING, QUICK).tables)


def test_imagenet_rows_are_said_not_to_be_run_and_have_their_costs() -> None:
    [table] = tan.TABLE1.shown(NOTHING, WHOLE).tables
    assert {row[-1] for row in table.rows} == {"ImageNet: not run"}
    assert table.rows[0][2:5] == (None, None, None)
    assert table.rows[3][2:5] == pytest.approx((7.980, 8.215, 7.486), abs=5e-4)


def test_table_4_prints_what_the_paper_does_beside_three_rules() -> None:
    printed, small = tan.TABLE4.shown(NOTHING, WHOLE).tables
    assert [row[3] for row in printed.rows] == [8.00, 7.97]
    assert printed.rows[1][4:7] == pytest.approx((7.954, 8.215, 7.465), abs=5e-4)
    assert [row[:3] for row in small.rows] == [(150, 8192, 16.0), (600, 4096, 4.0)]


def test_table_5_costs_are_those_of_the_settings_and_not_the_printed_ones() -> None:
    [table] = tan.TABLE5.shown(NOTHING, WHOLE).tables
    by_records = {row[0]: row for row in table.rows}
    assert by_records[50_000][2:5] == pytest.approx((7.10, 7.48, 6.58), abs=5e-3)
    found = [by_records[records][2] for records in (40_000, 25_000, 5_000)]
    assert found == pytest.approx([9.16, 16.25, 158.53], abs=5e-3)
    assert [by_records[records][1] for records in (40_000, 25_000, 5_000)] == [7.3, 13.7, 150.3]


def test_table_5_puts_full_runs_and_simulations_apart() -> None:
    outcomes = made_up(tan.TABLE5, lambda job: 0.7 if job.simulated_batch_size is None else 0.6 + job.seed / 100)
    [table] = tan.TABLE5.shown(outcomes, WHOLE).tables
    for row in table.rows:
        assert mean(row[6]) == pytest.approx(0.7)
        assert mean(row[7]) == pytest.approx(0.61)


def test_table_5_jobs_have_the_records_of_their_row_and_simulations_come_first() -> None:
    jobs = [job for job in tan.TABLE5.jobs(WHOLE) if isinstance(job, Training)]
    assert [job.records for job in jobs[:4]] == [5_000, 25_000, 40_000, None]
    assert [job.simulated_batch_size for job in jobs] == [512] * 12 + [None] * 12
    assert [job.steps for job in jobs] == [600] * 12 + [2500] * 12


def test_table_6_costs_are_near_the_printed_ones() -> None:
    half, whole = tan.TABLE6.shown(NOTHING, WHOLE).tables[0].rows
    assert half[3:6] == pytest.approx((17.87, 17.95, 16.84), abs=5e-3)
    assert whole[3:6] == pytest.approx((7.954, 8.215, 7.465), abs=5e-4)


def test_table_6_tells_the_gain_by_both_batches() -> None:
    outcomes = made_up(tan.TABLE6, lambda job: 0.6 if job.records else 0.62 if job.simulated_batch_size else 0.613)
    small = tan.TABLE6.shown(outcomes, WHOLE).tables[1]
    assert small.notes == ("Twice the records gain: +1.3 points by batches of 4096, +2.0 points simulated by 512.",)
    assert "–" in tan.TABLE6.shown(NOTHING, WHOLE).tables[1].notes[0]


def test_table_2_gains_are_over_the_first_column() -> None:
    def accuracy(job: Training) -> float:
        return 0.6 + (-0.02 if job.settings["learning_rate"] == 8.0 else 0.03 if job.views == 8 else 0.0)

    small = tan.TABLE2.shown(made_up(tan.TABLE2, accuracy), WHOLE).tables[1]
    for row in small.rows:
        assert row[2:] == pytest.approx((-2.0, 3.0))
    assert all(row[2:] == (None, None) for row in tan.TABLE2.shown(NOTHING, WHOLE).tables[1].rows)


def test_the_average_of_weights_is_the_same_for_both_decays_until_the_step_that_is_said() -> None:
    from lehr.update.averaging import ExponentialAverage

    usual, slow = ExponentialAverage(decay=0.999), ExponentialAverage(decay=0.99999)
    assert usual.kept(8989) == slow.kept(8989)
    assert usual.kept(8991) != slow.kept(8991)
    assert "8990" in tan.TABLE2.shown(NOTHING, WHOLE).tables[1].notes[0]


def test_rows_of_table_3_have_one_eta_and_the_printed_batch_of_756_has_another() -> None:
    etas = [tan.setting_of_whole(row).eta for row in tan._SAME_ETA]
    assert etas == pytest.approx([etas[2]] * 4, rel=1e-3)
    printed = [tan.imagenet(batch=64 * row.batch, steps=row.steps).eta for row in tan._SAME_ETA]
    assert printed[1:] == pytest.approx([printed[2]] * 3)
    assert printed[0] / printed[2] == pytest.approx(756 / 724, abs=1e-3)


def test_table_3_gains_are_over_the_reference() -> None:
    outcomes = made_up(tan.TABLE3, lambda job: 0.6 + job.steps / 100_000)
    small = tan.TABLE3.shown(outcomes, WHOLE).tables[1]
    assert [row[5] for row in small.rows] == [pytest.approx(-0.525), pytest.approx(-0.45), None, pytest.approx(1.8)]
    assert small.rows[2][3] == epsilons(tan.setting_of_whole(tan._SAME_ETA[2])).tight
