"""The page of a run and that of several runs, as somebody sees them who opens the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lehr.acceptance.annealed import Annealed
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.reports import compare_page, run_page
from lehr.reports.run_page import position
from tests.audits import HOLDING
from tests.browser.looking import (
    charts,
    check_that_it_reads_well,
    check_that_lines_are_switched,
    lines,
    opened,
    printed,
)
from tests.written_runs import configuration, evaluations, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

ONE = [
    "acceptance",
    "accuracy",
    "audit-roc-0",
    "audit-tradeoff-0",
    "classes",
    "clip",
    "constant-eta",
    "loss",
    "noise",
    "spent",
    "temperature",
]
SEVERAL = ["accuracy", "accuracy-steps", "classes", "clip", "loss", "loss-steps", "noise", "spent"]
_RANGE = "name => [...document.getElementById(name)._fullLayout.xaxis.range]"
_WIDEST = """() => Math.max(...[...document.querySelectorAll(".chart .main-svg")].map(
  chart => chart.getBoundingClientRect().width))"""


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    config = configuration(run="a <b>run</b>", method={"acceptance": Annealed().to_json()})
    rows = [
        replace(row, accuracy_by_class=(1.0, 0.5, 0.25), noise_multiplier=2.0, clip_norm=0.1)
        for row in evaluations(accepted=0.75)
    ]
    write_run(directory, config=config, rows=rows)
    return replace(read_run(directory), audit=HOLDING)


def one(record: RunRecord) -> str:
    return run_page.render(record, position=position(record))


def several(record: RunRecord) -> str:
    rows = tuple(replace(row, accepted=row.step) for row in record.evaluations)
    plain = replace(record, evaluations=rows, config={**record.config, "method": {"name": "dpsgd"}})
    public = {**plain.config, "run": "open", "data": {**plain.config["data"], "declared": "public"}}
    return compare_page.render([plain, replace(plain, config=public)])


def zoom(page: Page, chart: str, name: str) -> Locator:
    return page.locator(f".tools:has(+ #{chart}) .zoom button").get_by_text(name, exact=True)


def test_the_page_of_a_run_reads_well_wherever_it_is_opened(page: Page, tmp_path: Path, record: RunRecord) -> None:
    opened(page, one(record), tmp_path)
    assert sorted(charts(page)) == ONE
    assert page.locator("h1 b, svg b, td b").count() == 0  # a name is shown and not read
    check_that_lines_are_switched(page, chart="acceptance")
    check_that_one_zooms_in_and_back(page, "accuracy")
    check_that_numbers_are_behind_the_chart(page)
    check_that_it_reads_well(page, "run")
    check_that_it_is_printed_on_white(page)


def test_several_runs_on_one_page_read_well_wherever_it_is_opened(
    page: Page, tmp_path: Path, record: RunRecord
) -> None:
    opened(page, several(record), tmp_path)
    assert sorted(charts(page)) == SEVERAL
    assert lines(page, "accuracy").all_inner_texts() == ["a <b>run</b>"]
    assert lines(page, "accuracy-steps").all_inner_texts() == ["a <b>run</b>", "open [no privacy]"]
    check_that_lines_are_switched(page, chart="accuracy-steps")
    check_that_it_reads_well(page, "compared")
    assert printed(page, "compared").startswith(b"%PDF")


def check_that_one_zooms_in_and_back(page: Page, chart: str) -> None:
    whole, all_of_it = page.evaluate(_RANGE, chart), zoom(page, chart, "All")
    assert all_of_it.is_disabled()
    zoom(page, chart, "+").press("Enter")
    nearer = page.evaluate(_RANGE, chart)
    assert whole[0] < nearer[0] < nearer[1] < whole[1]
    zoom(page, chart, "+").press("ArrowRight")
    assert page.evaluate(_RANGE, chart)[0] > nearer[0]
    all_of_it.press("Enter")
    assert page.evaluate(_RANGE, chart) == pytest.approx(whole)


def check_that_numbers_are_behind_the_chart(page: Page) -> None:
    numbers = page.locator("details.numbers").first
    numbers.locator("summary").press("Enter")
    assert numbers.locator("tbody tr").count() == len(evaluations())


def check_that_it_is_printed_on_white(page: Page) -> None:
    """From a dark phone: charts have a width that fits a sheet, and are as they were afterwards."""
    page.evaluate(f"""() => {{ window.seen = []; const root = document.documentElement;
      window.addEventListener("beforeprint", () => window.seen.push(
        getComputedStyle(root).getPropertyValue("--page"), ({_WIDEST})())); }}""")
    assert printed(page, "run").startswith(b"%PDF")
    assert page.evaluate("() => window.seen") == ["#ffffff", 640]
    assert not page.evaluate("() => document.documentElement.classList.contains('printed')")
    assert page.evaluate(_WIDEST) <= 360
