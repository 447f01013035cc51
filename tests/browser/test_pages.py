"""All pages, as somebody sees them who opens the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from experiments import page as paper_page
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.reports import audit_page, plan_page, prediction_page, run_page
from tests.audits import HOLDING, REFUTED, SUSPICIOUS
from tests.browser.looking import (
    charts,
    check_lines_can_be_switched,
    check_readable,
    line_buttons,
    open_page,
    print_page,
)
from tests.experiments.test_page import PART
from tests.predictions import PREDICTION
from tests.reports import outlooks, test_search_page
from tests.written_runs import configuration, evaluations, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

_RANGE = "name => [...document.getElementById(name)._fullLayout.xaxis.range]"
_WIDEST = """() => Math.max(...[...document.querySelectorAll(".chart .main-svg")].map(
  chart => chart.getBoundingClientRect().width))"""


def a_record(folder: Path) -> RunRecord:
    rows = [
        replace(row, accuracy_by_class=(1.0, 0.5, 0.25), noise_multiplier=80 / row.step, clip_norm=1 / row.step)
        for row in (*evaluations(accepted=0.75), *evaluations((15,), on="held out", accepted=0.75))
    ]
    write_run(folder / "run", config=configuration(run="a <b>run</b>"), rows=rows)
    return replace(read_run(folder / "run"), audit=HOLDING)


def run(folder: Path) -> str:
    return run_page.render(a_record(folder))


def compared(folder: Path) -> str:
    record = a_record(folder)
    public = {**record.config, "run": "open", "data": {**record.config["data"], "declared": "public"}}
    return run_page.render_comparison([record, replace(record, config=public)])


def plan(folder: Path) -> str:
    plan = outlooks.CLEAR
    curve = plan_page.epsilon_chart(plan)
    return plan_page.render(plan, bound=plan.bound(), claim=plan.claim(), curve=curve, outlook=outlooks.of(plan))


def audit(folder: Path) -> str:
    return audit_page.render([HOLDING, replace(REFUTED, subject="half <b>the</b> noise"), SUSPICIOUS], title="Audit")


def search(folder: Path) -> str:
    return test_search_page.page(test_search_page.rows())


def prediction(folder: Path) -> str:
    return prediction_page.render(PREDICTION)


def paper(folder: Path) -> str:
    return paper_page.render([PART], title="A paper <b>", is_quick=True)


RUN = ["acceptance", "accuracy", "classes", "clip", "loss", "noise", "spent"]
PAGES: dict[Callable[[Path], str], list[str]] = {  # with the charts that each has
    run: sorted([*RUN, "audit-roc-0"]),
    compared: sorted([*RUN, "accuracy-steps", "loss-steps"]),
    plan: ["constant-eta", "curve", "divergence-ratio"],
    audit: [f"audit-roc-{number}" for number in range(3)],
    search: ["best", "setting-0", "setting-1"],
    prediction: ["prediction"],
    paper: ["table1-1", "table1-2"],
}


# One test a page and not several: to open a page, a browser reads the whole drawing library.
@pytest.mark.parametrize("made", PAGES, ids=lambda made: made.__name__)
def test_page_is_readable_and_its_lines_can_be_switched(
    page: Page, tmp_path: Path, made: Callable[[Path], str]
) -> None:
    open_page(page, made(tmp_path), tmp_path)
    assert sorted(charts(page)) == PAGES[made]
    assert page.locator("h1 b, h3 b, svg b, svg i, td b, td script").count() == 0  # a name is shown and not read
    several = next(name for name, lines in charts(page).items() if len(lines) > 1)
    check_lines_can_be_switched(page, chart=several)
    if made is run:
        check_zoom(page, "accuracy")
        numbers = page.locator("details.numbers").first
        numbers.locator("summary").press("Enter")
        assert numbers.locator("tbody tr").count() == len(evaluations()) + 1
        check_first_screen(page)
    if made is compared:
        assert line_buttons(page, "accuracy-steps").last.inner_text() == "open [no privacy], held out"
    check_readable(page, made.__name__)
    check_printed_on_white(page, made.__name__)


def check_first_screen(page: Page) -> None:
    """ε, accuracy, audit and what is public are seen without scrolling, and the contents lead to every section."""
    for size in ({"width": 1280, "height": 800}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        tiles = page.locator(".tiles > div")
        assert tiles.locator("dt").all_inner_texts() == ["Privacy", "Accuracy", "Audit", "Treated as public"]
        lowest: float = tiles.last.evaluate("one => one.getBoundingClientRect().bottom + window.scrollY")
        assert lowest < size["height"]
    page.set_viewport_size({"width": 1280, "height": 720})
    targets = page.locator("nav a").evaluate_all(
        "links => links.map(link => document.querySelector(link.hash) !== null)"
    )
    assert len(targets) == 5
    assert all(targets)


def zoom(page: Page, chart: str, name: str) -> Locator:
    return page.locator(f".tools:has(+ #{chart}) .zoom button").get_by_text(name, exact=True)


def check_zoom(page: Page, chart: str) -> None:
    whole, all_of_it = page.evaluate(_RANGE, chart), zoom(page, chart, "All")
    assert all_of_it.is_disabled()
    zoom(page, chart, "+").press("Enter")
    nearer = page.evaluate(_RANGE, chart)
    assert whole[0] < nearer[0] < nearer[1] < whole[1]
    zoom(page, chart, "+").press("ArrowRight")
    assert page.evaluate(_RANGE, chart)[0] > nearer[0]
    all_of_it.press("Enter")
    assert page.evaluate(_RANGE, chart) == pytest.approx(whole)


def check_printed_on_white(page: Page, name: str) -> None:
    """From a dark phone: charts have a width that fits a sheet, and are as they were afterwards."""
    page.evaluate(f"""() => {{ window.seen = []; const root = document.documentElement;
      window.addEventListener("beforeprint", () => window.seen.push(
        getComputedStyle(root).getPropertyValue("--page"), ({_WIDEST})())); }}""")
    assert print_page(page, name).startswith(b"%PDF")
    assert page.evaluate("() => window.seen") == ["#ffffff", 640]
    assert not page.evaluate("() => document.documentElement.classList.contains('printed')")
    assert page.evaluate(_WIDEST) <= 360


def test_numbers_replace_charts_in_an_old_browser(page: Page, tmp_path: Path) -> None:
    page.add_init_script("delete window.DecompressionStream")
    file = tmp_path / "page.html"
    file.write_text(audit(tmp_path), encoding="utf-8")
    page.goto(file.as_uri())
    page.get_by_text("This browser cannot draw the charts").wait_for()
    assert page.locator(".chart:visible").count() == 0
    assert page.locator("details.numbers:not([open])").count() == 0
    assert page.locator("details.numbers table:visible").count() == len(PAGES[audit])
