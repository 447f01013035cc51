"""SA-DPSGD's Figure 4: one setting is moved at a time, and the steps follow the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.sa_dpsgd_runs import DELTA, KEPT, MNIST, run_of
from lehr.papers.sa_dpsgd_sweeps import EXPERIMENTS, STEPS_OF_BATCHES, SWEEPS, with_batch
from lehr.papers.table import Measured
from lehr.planning.plan import make_plan

[FIGURE4] = EXPERIMENTS


@pytest.mark.parametrize("batch", STEPS_OF_BATCHES)
def test_a_batch_has_the_most_steps_that_the_published_rule_allows_at_3(batch: int) -> None:
    plan = make_plan(
        epsilon=3,
        delta=DELTA,
        records=MNIST.records,
        expected_batch_size=batch,
        noise_multiplier=MNIST.noise_multiplier,
        accountant="rdp-mironov17",
    )
    assert STEPS_OF_BATCHES[batch] == plan.steps


def test_every_sweep_goes_through_the_papers_own_setting() -> None:
    for sweep in SWEEPS:
        assert [setting for _, setting in sweep.points].count(MNIST) == 1
        assert set(sweep.printed) <= {value for value, _ in sweep.points}


def test_only_the_setting_of_a_sweep_is_moved() -> None:
    rate, batch, temperature, threshold = (sweep.points for sweep in SWEEPS)
    assert all(setting == replace(MNIST, rate=value) for value, setting in rate)
    assert all(setting == with_batch(int(value)) for value, setting in batch)
    assert all(setting == replace(MNIST, initial_inverse_temperature=value) for value, setting in temperature)
    assert all(setting == replace(MNIST, rejection_threshold=int(value)) for value, setting in threshold)
    assert replace(with_batch(256), batch=512, steps=4698, evaluate_every=81) == MNIST


def test_all_points_have_one_run_before_any_has_two() -> None:
    jobs = [job for job in FIGURE4.jobs(Size()) if isinstance(job, Training)]
    points = sum(len(sweep.points) for sweep in SWEEPS) - len(SWEEPS) + 1
    assert [job.seed for job in jobs] == [0] * points + [1] * points + [2] * points
    assert jobs.count(run_of(MNIST, KEPT, 0)) == 1


def test_a_point_is_the_mean_over_its_runs_beside_the_papers() -> None:
    point = replace(MNIST, rate=1.5)
    told = [{"accuracy": 0.98, "candidates": 9000}, {"accuracy": 0.99, "candidates": 10_000}]
    found = Outcomes({key_of(run_of(point, KEPT, seed)): outcome for seed, outcome in enumerate(told)})
    shown = FIGURE4.shown(found, Size())
    [row] = [row for row in shown.tables[0].rows if row[0] == "1.5"]
    assert row[1:5] == (0.9881, Measured((0.98, 0.99)), 4698, Measured((9000, 10_000)))
    assert row[5] == pytest.approx(9.315, abs=1e-3)
    [chart] = shown.charts
    assert [*chart.lines[0].x] == [1.5]
    assert [*chart.lines[0].y] == pytest.approx([0.985])
