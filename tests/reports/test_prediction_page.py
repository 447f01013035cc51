from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lehr.certificates.run_reading import RunRecord, read_run
from lehr.errors import InvalidValue
from lehr.planning.simulation import Interval, Prediction
from lehr.reports import run_page
from lehr.reports.prediction_page import (
    CAVEAT,
    REVEALED,
    compare_with_run,
    interval_text,
    prediction_facts,
    prediction_sentences,
    prediction_text,
    render,
)
from tests.predictions import BENT, BEYOND, PREDICTION
from tests.reports.pages import Page, chart_lines, charts
from tests.written_runs import PLAN, configuration, evaluations, write_run


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    return read_run(write_run(directory, config=configuration(data={"declared": "public"})).directory)


def test_page_has_the_prediction_and_what_it_rests_on() -> None:
    words = Page(render(PREDICTION)).words
    for expected in (prediction_text(PREDICTION), CAVEAT, "digits, declared public", "95.00%", "2026-01-31"):
        assert expected in words
    hostile = {**PREDICTION.setting, "data": {"name": "<b>digits</b>"}}
    assert "<b>digits</b>" not in render(replace(PREDICTION, setting=hostile))
    assert "Network" not in Page(render(replace(PREDICTION, setting={}))).words


def test_chart_has_points_law_band_and_reference() -> None:
    text = render(PREDICTION)
    found = chart_lines(text, "prediction")
    lowest, highest = PREDICTION.interval()
    assert found["simulated runs, which protect nobody"]["x"] == [2, 2, 4, 4, 8, 8]
    assert found["the fitted law"]["y"][-1] == pytest.approx(PREDICTION.accuracy)
    band = found["95 % of single runs"]
    at_reference = [y for x, y in zip(band["x"], band["y"], strict=True) if x == pytest.approx(16)]
    assert at_reference == pytest.approx([highest, lowest])
    assert (found["predicted"]["x"], found["predicted"]["is_mark"]) == ([16], True)
    assert charts(text)["prediction"]["x_ticks"] == [2, 4, 8, 16]


@pytest.mark.parametrize("off, verdict", [(0.0, "inside the interval"), (0.3, "outside the interval")])
def test_run_is_compared_with_the_interval(record: RunRecord, off: float, verdict: str) -> None:
    prediction = replace(PREDICTION, runs=tuple(replace(run, accuracy=run.accuracy - off) for run in PREDICTION.runs))
    outcome = compare_with_run(prediction, record)
    assert (outcome.verdict, outcome.warnings) == (verdict, ())
    assert f"95.0 % was reached: {verdict}, +{30 if off else 0}" in str(outcome)
    page = run_page.render(record, outcome=outcome)
    assert str(outcome) in Page(page).words
    found = chart_lines(page, "prediction")
    assert (found["reached"]["y"], found["predicted"]["is_mark"]) == ([0.95], False)
    assert "prediction" not in charts(run_page.render(record))


def test_differences_are_warned_of(record: RunRecord) -> None:
    views = {**record.config, "training": {**record.config["training"], "views": 4}}
    [warning] = compare_with_run(PREDICTION, replace(record, config=views)).warnings
    assert "views" in warning
    private = {**record.config, "data": {**record.config["data"], "declared": "private"}}
    assert REVEALED in compare_with_run(PREDICTION, replace(record, config=private)).warnings
    assert any("do not follow" in warning for warning in compare_with_run(BENT, record).warnings)


def test_unfinished_or_otherwise_evaluated_run_is_not_compared(tmp_path: Path, record: RunRecord) -> None:
    going_on = read_run(write_run(tmp_path / "open", steps_taken=20, is_over=False).directory)
    for one in (going_on, replace(record, evaluations=tuple(evaluations(on="held-out records")))):
        outcome = compare_with_run(PREDICTION, one)
        assert (outcome.comparison, outcome.verdict) == (None, "not compared")
        assert outcome.not_compared_because
        assert "reached" not in chart_lines(run_page.render(one, outcome=outcome), "prediction")


def test_run_of_another_plan_is_refused(record: RunRecord) -> None:
    with pytest.raises(InvalidValue, match="80 steps of batches of 16"):
        compare_with_run(replace(PREDICTION, reference=replace(PLAN, steps=80)), record)


def test_interval_is_rounded_outwards() -> None:
    assert interval_text(Interval(0.61899, 0.64301)) == "61.8–64.4 %"
    assert interval_text(Interval(0.618, 0.644)) == "61.8–64.4 %"
    assert interval_text(Interval(0.0, 1.0)) == "0.0–100.0 %"


@pytest.mark.parametrize(
    "prediction, word",
    [
        (BENT, "do not follow"),
        (BEYOND, "[0, 1]"),
        (replace(PREDICTION, runs=tuple(replace(r, accuracy=n % 2) for n, r in enumerate(PREDICTION.runs))), "wide"),
    ],
    ids=["bent", "beyond", "wide"],
)
def test_objections_are_among_the_sentences(prediction: Prediction, word: str) -> None:
    assert word in " ".join(prediction_sentences(prediction))
    assert word not in " ".join(prediction_sentences(PREDICTION))


def test_facts_have_the_reference_its_epsilon_and_the_cost() -> None:
    facts = prediction_facts(PREDICTION)
    assert facts["reference"] == "40 steps of batches of 16 at noise multiplier 2"
    assert "at δ = 1e-05" in facts["its ε on private records"]
    assert facts["their cost"].startswith("1.8 times")
    assert facts["extrapolated to"].startswith("2 times")
