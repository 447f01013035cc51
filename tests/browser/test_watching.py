"""The watch over a page must be able to fail a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import watch
from tests.browser.looking import faint, headings_skip_a_level, open_page, sticks_out

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.mark.parametrize(
    "body, complaint",
    [
        ("<script>console.error('oh')</script>", "console: oh"),
        ("<script>notThere()</script>", "script: notThere is not defined"),
        ("<img src='http://example.org/a.png'>", "request: http://example.org/a.png"),
        ("<script>fetch('http://127.0.0.1:9/').catch(() => 0)</script>", "request: http://127.0.0.1:9/"),
    ],
)
def test_forbidden_actions_are_noticed(browser: Browser, tmp_path: Path, body: str, complaint: str) -> None:
    with watch(browser) as (page, complaints):
        open_page(page, body, tmp_path).wait_for_timeout(50)
    assert complaint in complaints


def test_unreadable_pages_are_noticed(page: Page, tmp_path: Path) -> None:
    body = "<h1>A</h1><h3 style='color: #999'>B</h3><p style='width: 3000px'>C</p><p hidden>D</p>"
    open_page(page, body, tmp_path)
    assert (faint(page), headings_skip_a_level(page), sticks_out(page)) == (["B: 2.85"], True, True)
    fine = "<h1>A</h1><h2 style='color: #555'>B</h2><p>C</p><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"
    open_page(page, f"{fine}<script>console.log('fine')</script>", tmp_path)
    assert (faint(page), headings_skip_a_level(page), sticks_out(page)) == ([], False, False)
