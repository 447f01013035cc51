from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lehr.errors import InvalidValue
from lehr.planning.extrapolation import Prediction
from lehr.planning.scaling_law import Interval
from lehr.reports import prediction_words
from lehr.reports.prediction_words import Reached, between, facts, objections, percent, predicted, reached, sentences
from lehr.reports.run_reading import read_run
from tests.predictions import BENT, BEYOND, FAR, PREDICTION
from tests.written_runs import PLAN, configuration, evaluations, write_run


def _reached(
    tmp_path: Path, prediction: Prediction = PREDICTION, *, declared: str = "public", views: int = 1
) -> Reached:
    config = configuration(data={"declared": declared}, training={"views": views})
    return reached(prediction, read_run(write_run(tmp_path / "run", config=config).directory))


def test_the_sentence_has_the_batch_the_interval_and_that_nobody_is_protected() -> None:
    lowest, highest = PREDICTION.interval()
    said = predicted(PREDICTION)
    assert said.startswith(f"A run at B = 16 is predicted to reach {percent(PREDICTION.accuracy)} (95 %: ")
    assert said.endswith("measured on 6 simulated runs that protect nobody.")
    assert f"{between(Interval(lowest, highest))})" in said


def test_ends_are_rounded_outwards_so_that_what_is_inside_stays_inside() -> None:
    assert between(Interval(0.61899, 0.64301)) == "61.8–64.4 %"
    assert between(Interval(0.618, 0.644)) == "61.8–64.4 %"
    assert between(Interval(0.0, 1.0)) == "0.0–100.0 %"


def test_a_prediction_that_nothing_speaks_against_has_no_objections() -> None:
    assert list(objections(PREDICTION)) == []
    assert prediction_words.CAVEAT in list(sentences(PREDICTION))


def test_an_interval_that_says_nothing_is_called_so() -> None:
    assert not any("next to nothing" in said for said in sentences(PREDICTION))
    runs = tuple(replace(run, accuracy=float(place % 2)) for place, run in enumerate(PREDICTION.runs))
    scattered = replace(PREDICTION, runs=runs)
    assert any("next to nothing" in said for said in sentences(scattered))


@pytest.mark.parametrize(
    "prediction, words",
    [
        (BENT, "bend away from a line"),
        (BEYOND, "leaves what accuracies can be"),
        (FAR, "3 doublings beyond the largest simulated batch, farther than the 1 doubling that"),
    ],
)
def test_what_speaks_against_a_prediction_is_said(prediction: Prediction, words: str) -> None:
    assert words in " ".join(sentences(prediction))


def test_the_facts_have_the_reference_its_epsilon_and_the_cost() -> None:
    rows = dict(facts(PREDICTION))
    assert rows["Reference"] == "40 steps of batches of 16 at noise multiplier 2"
    assert rows["Its ε on private records"].endswith(f"at δ = 1e-05, if there are {PREDICTION.reference.records:,}")
    assert rows["Their cost"] == "1.8 times the records of one run of the reference"
    assert rows["Reaches beyond them"] == "1 doubling"


def test_a_run_that_reached_what_was_predicted_is_inside(tmp_path: Path) -> None:
    found = _reached(tmp_path)
    assert found.verdict == "inside the interval"
    assert found.comparison is not None
    assert found.comparison.outcome == 0.95
    assert found.warnings == ()
    said = prediction_words.comparison_sentence(PREDICTION, found.comparison)
    assert "95.0 % was reached: inside the interval" in said


def test_a_run_that_reached_much_more_is_outside(tmp_path: Path) -> None:
    lower = replace(PREDICTION, runs=tuple(replace(run, accuracy=run.accuracy - 0.3) for run in PREDICTION.runs))
    found = _reached(tmp_path, lower)
    assert found.verdict == "outside the interval"
    assert found.comparison is not None
    assert "outside the interval, +30" in prediction_words.comparison_sentence(lower, found.comparison)


def test_another_setting_is_warned_of(tmp_path: Path) -> None:
    [warning] = _reached(tmp_path, views=4).warnings
    assert "training: views was 1 in the simulations and is 4" in warning


def test_private_records_that_were_simulated_on_are_warned_of(tmp_path: Path) -> None:
    assert _reached(tmp_path, declared="private").warnings == (prediction_words.REVEALED,)


def test_a_bent_line_is_warned_of_beside_the_outcome(tmp_path: Path) -> None:
    assert any("bend" in warning for warning in _reached(tmp_path, BENT).warnings)


def test_a_run_that_goes_on_is_not_compared(tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", steps_taken=20, is_over=False)
    found = reached(PREDICTION, read_run(files.directory))
    assert (found.comparison, found.verdict) == (None, "not compared")
    assert "still running" in found.not_compared_because


def test_a_run_that_was_scored_on_something_else_is_not_compared(tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", rows=evaluations(on="held-out records"))
    assert "not evaluated on test" in reached(PREDICTION, read_run(files.directory)).not_compared_because


def test_a_run_of_another_plan_is_refused(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run").directory)
    with pytest.raises(InvalidValue, match="80 steps of batches of 16"):
        reached(replace(PREDICTION, reference=replace(PLAN, steps=80)), record)
