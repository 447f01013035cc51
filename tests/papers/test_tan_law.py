from __future__ import annotations

from pathlib import Path

import pytest

from lehr.papers import tan_law
from lehr.papers.experiment import Outcome, Outcomes, Size
from lehr.papers.job import key_of
from lehr.papers.store import Kept, outcomes_in
from lehr.papers.table import Measured

WHOLE = Size()
KEPT = Path(__file__).parents[2] / "results/papers"
NOTHING = Outcomes({})


def made_up(by_batch: dict[int, tuple[float, ...]]) -> Outcomes:
    """A line of 600 steps with these accuracies."""
    found: dict[str, Outcome] = {}
    for batch, accuracies in by_batch.items():
        jobs = tan_law.SHORT.runs(WHOLE, batch)
        for job, accuracy in zip(jobs, accuracies, strict=False):
            found[key_of(job)] = {"accuracy": accuracy, "epsilon_proven": 1.0}
    return Outcomes(found)


def test_the_line_through_small_batches_is_held_against_what_the_reference_reached() -> None:
    rising = {batch: (0.40 + 0.01 * place, 0.41 + 0.01 * place) for place, batch in enumerate((64, 128, 256, 512))}
    outcomes = made_up({**rising, 1024: (0.0,), 4096: (0.475, 0.465)})
    [row] = tan_law.predictions([tan_law.SHORT], outcomes, WHOLE).rows
    assert row[1:3] == (8, "+1.00 points")
    assert row[3] == pytest.approx(0.465)
    assert row[5] == pytest.approx(1.0)
    assert row[6:] == (Measured((0.475, 0.465)), "yes")


def test_an_outcome_that_is_not_in_the_interval_is_said_to_be_outside() -> None:
    rising = {batch: (0.40 + 0.01 * place, 0.401 + 0.01 * place) for place, batch in enumerate((64, 128, 256, 512))}
    [row] = tan_law.predictions([tan_law.SHORT], made_up({**rising, 4096: (0.3,)}), WHOLE).rows
    assert row[7] == "no"


def test_two_batches_foretell_nothing() -> None:
    few = made_up({64: (0.4, 0.41), 128: (0.42, 0.43)})
    assert tan_law.SHORT.prediction(few, WHOLE) is None
    [row] = tan_law.predictions([tan_law.SHORT], few, WHOLE).rows
    assert row == ("600 steps", None, None, None, None, None, Measured(()), None)


def test_without_runs_there_are_no_accuracies_and_no_chart_and_the_references_cost_is_known() -> None:
    table = tan_law.accuracies([tan_law.LONG], NOTHING, WHOLE)
    assert all(row[4] == Measured(()) for row in table.rows)
    assert [row[3] for row in table.rows[:-1]] == [None] * 5
    assert table.rows[-1][3] == pytest.approx(6.58, abs=5e-3)
    assert tan_law.chart("law", [tan_law.LONG], NOTHING, WHOLE) == ()


def test_the_kept_runs_mispredict_the_reference_and_bend() -> None:
    outcomes = outcomes_in(Kept.read(KEPT / "tan_figure4.json"))
    [row] = tan_law.predictions([tan_law.SHORT], outcomes, WHOLE).rows
    assert row[1:3] == (12, "+1.48 points")
    assert row[3] == pytest.approx(0.674, abs=5e-4)
    assert row[4] == "64.5 to 70.3"
    assert row[5] == pytest.approx(0.026, abs=5e-4)
    assert row[7] == "no"
    [chart] = tan_law.chart("law", [tan_law.SHORT, tan_law.LONG], outcomes, WHOLE)
    assert [line.is_scattered for line in chart.lines] == [True, False, False, True]


def test_the_epsilon_of_a_simulation_itself_is_no_proven_one() -> None:
    assert tan_law.own_epsilon({"epsilon_proven": None, "epsilon_simulated": 30.0}) == 30.0
    assert tan_law.own_epsilon({"epsilon_proven": 8.0}) == 8.0


def test_a_run_that_simulates_costs_what_its_small_noise_says() -> None:
    kept = Kept.read(KEPT / "tan_figure4.json")
    by_batch = {entry["job"].get("simulated_batch_size"): entry["result"] for entry in kept.entries.values()}
    assert (tan_law.own_epsilon(by_batch[64]) or 0.0) > 1000
    assert tan_law.setting_of(64, 600).noise_multiplier == pytest.approx(3 / 64)
