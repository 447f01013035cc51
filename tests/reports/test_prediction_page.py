from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.reports import prediction_words, run_page
from lehr.reports.prediction_page import part, render
from lehr.reports.run_reading import read_run
from tests.predictions import PREDICTION
from tests.reports.pages import Page
from tests.written_runs import configuration, write_run


def chart(page: str) -> dict[str, Any]:
    [found] = [one for one in json.loads(Page(page).scripts[0]) if one["element"] == "prediction"]
    assert isinstance(found, dict)
    return found


def lines(page: str) -> dict[str, Any]:
    return {line["name"]: line for line in chart(page)["lines"]}


@pytest.fixture(scope="module")
def page() -> str:
    return render(PREDICTION)


def test_the_page_asks_the_network_for_nothing(page: str) -> None:
    assert not any("src" in attributes or "href" in attributes for _, attributes in Page(page).tags)


def test_the_page_says_what_is_predicted_and_what_it_rests_on(page: str) -> None:
    words = Page(page).words
    for expected in (
        prediction_words.predicted(PREDICTION),
        prediction_words.CAVEAT,
        "digits, declared public",
        "95.0 %, 96.0 %",
        "Predicted on 2026-01-31",
    ):
        assert expected in words


def test_every_simulated_batch_has_a_row_with_its_noise(page: str) -> None:
    words = Page(page).words
    for noise in ("0.25", "0.5", "1"):
        assert f" {noise} " in words


def test_the_chart_has_points_line_band_and_the_reference(page: str) -> None:
    found = lines(page)
    lowest, highest = PREDICTION.interval()
    assert found["simulated runs, which protect nobody"]["x"] == [2, 2, 4, 4, 8, 8]
    assert found["the line"]["x"][-1] == pytest.approx(16)
    assert found["the line"]["y"][-1] == pytest.approx(PREDICTION.accuracy)
    band = found["95 % of single runs"]
    at_reference = [y for x, y in zip(band["x"], band["y"], strict=True) if x == pytest.approx(16)]
    assert at_reference == pytest.approx([highest, lowest])
    assert (found["predicted"]["x"], found["predicted"]["is_mark"]) == ([16], True)
    assert chart(page)["x_ticks"] == [2, 4, 8, 16]


def test_names_are_escaped() -> None:
    setting = {**PREDICTION.setting, "data": {"name": "<b>digits</b>"}}
    assert "<b>digits</b>" not in render(replace(PREDICTION, setting=setting))


def test_a_prediction_of_unknown_runs_has_a_page_too() -> None:
    assert "Records" not in Page(render(replace(PREDICTION, setting={}))).words


def test_the_part_of_a_run_has_the_outcome_in_words_and_in_the_chart(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", config=configuration(data={"declared": "public"})).directory)
    page = run_page.render(record, prediction=PREDICTION)
    assert part(PREDICTION, record).verdict == "inside the interval"
    assert "Predicted and reached" in Page(page).words
    assert "95.0 % was reached: inside the interval" in Page(page).words
    assert (lines(page)["reached"]["y"], lines(page)["predicted"]["is_mark"]) == ([0.95], False)
    assert "Predicted and reached" not in run_page.render(record)


def test_the_part_of_a_run_that_goes_on_has_no_outcome(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", steps_taken=10, is_over=False).directory)
    found = part(PREDICTION, record)
    assert "not compared with anything: the run is not at the end" in found.sentence
    assert "reached" not in [line.name for line in found.chart.lines]


def test_a_warning_stands_on_the_page_of_the_run(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", config=configuration(data={"declared": "private"})).directory)
    assert prediction_words.REVEALED in Page(run_page.render(record, prediction=PREDICTION)).words


@pytest.mark.parametrize("stated", ["many", None, [1], 1.5])
def test_a_size_that_is_no_count_is_not_stated(stated: object) -> None:
    setting = {**PREDICTION.setting, "model": {**PREDICTION.setting["model"], "parameters": stated}}
    assert "of a size that is not stated" in Page(render(replace(PREDICTION, setting=setting))).words
