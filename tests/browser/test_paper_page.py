"""The page of a paper's tables and figures, as somebody sees it who opens the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments.page import render
from tests.browser.looking import charts, check_that_it_reads_well, opened
from tests.experiments.test_page import PART

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_papers_page_reads_well_and_its_lines_can_be_switched(page: Page, tmp_path: Path) -> None:
    opened(page, render([PART], title="A paper <b>", is_quick=True), tmp_path)
    assert charts(page) == {"table1-1": [2, 2], "table1-2": [2, 2]}
    assert page.locator("td script, h1 b, h3 b").count() == 0
    for visible in ([0, 2], [2, 2]):  # away, and back
        page.get_by_role("button", name="DPSGD").first.click()
        assert charts(page) == {"table1-1": visible, "table1-2": [2, 2]}
    check_that_it_reads_well(page, "paper")
