from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue
from lehr.planning.simulation import Interval, Prediction
from lehr.reports import run_page
from lehr.reports.prediction_page import (
    CAVEAT,
    REVEALED,
    PredictionOutcome,
    compare_with_run,
    comparison_text,
    interval_text,
    objections,
    prediction_facts,
    prediction_sentences,
    prediction_text,
    render,
)
from tests.predictions import BENT, BEYOND, FAR, PREDICTION
from tests.reports.pages import Page, chart_lines, charts
from tests.written_runs import PLAN, configuration, evaluations, write_run


def outcome(
    tmp_path: Path, prediction: Prediction = PREDICTION, *, declared: str = "public", views: int = 1
) -> PredictionOutcome:
    config = configuration(data={"declared": declared}, training={"views": views})
    return compare_with_run(prediction, read_run(write_run(tmp_path / "run", config=config).directory))


def test_the_page_says_what_is_predicted_and_what_it_rests_on() -> None:
    text = render(PREDICTION)
    words = Page(text).words
    for expected in (prediction_text(PREDICTION), CAVEAT, "digits, declared public", "95.0 %, 96.0 %", "2026-01-31"):
        assert expected in words
    for noise in ("0.25", "0.5", "1"):
        assert f" {noise} " in words
    assert "<b>digits</b>" not in render(
        replace(PREDICTION, setting={**PREDICTION.setting, "data": {"name": "<b>digits</b>"}})
    )
    assert "declared" not in Page(render(replace(PREDICTION, setting={}))).words.replace("were declared", "")


def test_the_chart_has_points_line_band_and_the_reference() -> None:
    text = render(PREDICTION)
    found = chart_lines(text, "prediction")
    lowest, highest = PREDICTION.interval()
    assert found["simulated runs, which protect nobody"]["x"] == [2, 2, 4, 4, 8, 8]
    assert found["the line"]["y"][-1] == pytest.approx(PREDICTION.accuracy)
    band = found["95 % of single runs"]
    at_reference = [y for x, y in zip(band["x"], band["y"], strict=True) if x == pytest.approx(16)]
    assert at_reference == pytest.approx([highest, lowest])
    assert (found["predicted"]["x"], found["predicted"]["is_mark"]) == ([16], True)
    assert charts(text)["prediction"]["x_ticks"] == [2, 4, 8, 16]


def test_the_page_of_the_run_has_the_outcome_and_the_warnings(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", config=configuration(data={"declared": "public"})).directory)
    page = run_page.render(record, prediction=PREDICTION)
    assert "95.0 % was reached: inside the interval" in Page(page).words
    found = chart_lines(page, "prediction")
    assert (found["reached"]["y"], found["predicted"]["is_mark"]) == ([0.95], False)
    assert "prediction" not in charts(run_page.render(record))
    private = {**record.config, "data": {**record.config["data"], "declared": "private"}}
    assert REVEALED in Page(run_page.render(replace(record, config=private), prediction=PREDICTION)).words


def test_a_run_that_goes_on_or_was_evaluated_on_something_else_is_not_compared(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "open", steps_taken=20, is_over=False).directory)
    found = compare_with_run(PREDICTION, record)
    assert (found.comparison, found.verdict) == (None, "not compared")
    assert "still running" in found.not_compared_because
    assert "reached" not in chart_lines(run_page.render(record, prediction=PREDICTION), "prediction")
    files = write_run(tmp_path / "run", rows=evaluations(on="held-out records"))
    assert "not evaluated on test" in compare_with_run(PREDICTION, read_run(files.directory)).not_compared_because


def test_ends_are_rounded_outwards_so_that_what_is_inside_stays_inside() -> None:
    assert interval_text(Interval(0.61899, 0.64301)) == "61.8–64.4 %"
    assert interval_text(Interval(0.618, 0.644)) == "61.8–64.4 %"
    assert interval_text(Interval(0.0, 1.0)) == "0.0–100.0 %"


@pytest.mark.parametrize("prediction, word", [(BENT, "bend"), (BEYOND, "[0, 1]"), (FAR, "3 doublings beyond")])
def test_what_speaks_against_a_prediction_is_said(prediction: Prediction, word: str) -> None:
    assert word in " ".join(objections(prediction))
    assert word in " ".join(prediction_sentences(prediction))
    assert [*objections(PREDICTION)] == []


def test_an_interval_that_says_nothing_is_called_so() -> None:
    assert not any("next to nothing" in said for said in prediction_sentences(PREDICTION))
    runs = tuple(replace(run, accuracy=float(place % 2)) for place, run in enumerate(PREDICTION.runs))
    assert any("next to nothing" in said for said in prediction_sentences(replace(PREDICTION, runs=runs)))


def test_the_facts_have_the_reference_its_epsilon_and_the_cost() -> None:
    rows = dict(prediction_facts(PREDICTION))
    assert rows["Reference"] == "40 steps of batches of 16 at noise multiplier 2"
    assert "at δ = 1e-05" in rows["Its ε on private records"]
    assert rows["Their cost"].startswith("1.8 times")
    assert rows["Extrapolated by"] == "1 doubling"


@pytest.mark.parametrize("off, verdict", [(0.0, "inside"), (0.3, "outside")])
def test_a_run_is_inside_or_outside_of_the_interval(tmp_path: Path, off: float, verdict: str) -> None:
    prediction = replace(PREDICTION, runs=tuple(replace(run, accuracy=run.accuracy - off) for run in PREDICTION.runs))
    found = outcome(tmp_path, prediction)
    assert found.verdict == f"{verdict} the interval"
    assert found.comparison is not None
    assert found.comparison.outcome == 0.95
    assert f"{verdict} the interval, +{30 if off else 0}" in comparison_text(prediction, found.comparison)
    assert found.warnings == ()


def test_other_settings_and_a_bent_line_are_warned_of(tmp_path: Path) -> None:
    [warning] = outcome(tmp_path / "a", views=4).warnings
    assert "training: views was 1 in the simulations and is 4" in warning
    assert any("bend" in warning for warning in outcome(tmp_path / "b", BENT).warnings)


def test_a_run_of_another_plan_is_refused(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run").directory)
    with pytest.raises(InvalidValue, match="80 steps of batches of 16"):
        compare_with_run(replace(PREDICTION, reference=replace(PLAN, steps=80)), record)
