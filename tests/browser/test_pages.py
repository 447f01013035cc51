"""The pages of a plan, an audit, a search and a prediction, as somebody sees them who opens the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lehr.reports import audit_page, plan_page, prediction_page, search_page
from lehr.reports.plan_page import epsilon_points
from lehr.reports.progress import TrialRow
from tests.audits import HOLDING, REFUTED, SUSPICIOUS
from tests.browser.looking import charts, check_that_it_reads_well, check_that_lines_are_switched, opened, printed
from tests.predictions import PREDICTION
from tests.reports import outlooks

if TYPE_CHECKING:
    from playwright.sync_api import Page


def plan() -> str:
    plan = outlooks.CLEAR
    return plan_page.render(
        plan, bound=plan.bound(), claim=plan.claim(), points=epsilon_points(plan), outlook=outlooks.of(plan)
    )


def audit() -> str:
    return audit_page.render([HOLDING, replace(REFUTED, subject="half <b>the</b> noise"), SUSPICIOUS], title="Audit")


def search() -> str:
    rows = [
        TrialRow(
            number=number,
            state="done",
            score=0.5 + 0.03 * (number * 7 % 12),
            parameters={"optimizer": "sgd" if number % 2 else "<b>adam</b>", "rate": 10.0 ** -(number % 7)},
            seconds=12.0,
        )
        for number in range(12)
    ]
    return search_page.render(
        rows,
        title="Search <i>x</i>",
        score="accuracy",
        trials=20,
        terms="free: the records are declared public",
        winner='name = "digits" <script>',
        names=["optimizer", "rate"],
    )


def prediction() -> str:
    return prediction_page.render(PREDICTION)


PAGES = {
    plan: ["constant-eta", "curve", "divergence-ratio"],
    audit: [f"audit-{kind}-{number}" for kind in ("roc", "tradeoff") for number in range(3)],
    search: ["best", "parallel"],
    prediction: ["prediction"],
}


# One test a page and not several: to open a page, a browser reads the whole drawing library.
@pytest.mark.parametrize("made", PAGES, ids=lambda made: made.__name__)
def test_a_page_reads_well_wherever_it_is_opened_and_its_lines_can_be_switched(
    page: Page, tmp_path: Path, made: Callable[[], str]
) -> None:
    opened(page, made(), tmp_path)
    assert sorted(charts(page)) == PAGES[made]
    assert page.locator("svg b, svg i, td b").count() == 0  # a name is shown and not read
    check_that_lines_are_switched(page, chart=PAGES[made][0])
    check_that_it_reads_well(page, made.__name__)
    assert printed(page, made.__name__).startswith(b"%PDF")


def test_where_the_library_cannot_be_unpacked_numbers_stand_in_place_of_charts(page: Page, tmp_path: Path) -> None:
    page.add_init_script("delete window.DecompressionStream")
    file = tmp_path / "page.html"
    file.write_text(audit(), encoding="utf-8")
    page.goto(file.as_uri())
    page.get_by_text("This browser cannot draw the charts").wait_for()
    assert page.locator(".chart:visible").count() == 0
    assert page.locator("details.numbers:not([open])").count() == 0
    assert page.locator("details.numbers table:visible").count() == len(PAGES[audit])
