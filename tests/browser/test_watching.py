"""The watch over a page must be able to fail a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.looking import faint_words, headings_skip_a_level, opened, sticks_out
from tests.browser.watching import Watch

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
def test_what_a_page_may_not_do_fails_its_test(browser: Browser, tmp_path: Path, body: str, complaint: str) -> None:
    watch = Watch(may_reach_this_machine=False)
    with pytest.raises(AssertionError), watch.over(browser) as page:
        opened(page, body, tmp_path).wait_for_timeout(50)
    assert complaint in watch.complaints


def test_a_page_that_does_nothing_of_it_passes(page: Page, tmp_path: Path) -> None:
    fine = "<script>console.log('fine')</script><img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>"
    opened(page, fine, tmp_path)


def test_what_is_hard_to_read_is_found(page: Page, tmp_path: Path) -> None:
    body = "<h1>A</h1><h3 style='color: #999'>B</h3><p style='width: 3000px'>C</p><p hidden>D</p>"
    opened(page, body, tmp_path)
    assert faint_words(page) == ["B: 2.85"]
    assert headings_skip_a_level(page)
    assert sticks_out(page)


def test_what_is_easy_to_read_is_not(page: Page, tmp_path: Path) -> None:
    opened(page, "<h1>A</h1><h2 style='color: #555'>B</h2><p>C</p>", tmp_path)
    assert faint_words(page) == []
    assert not headings_skip_a_level(page)
    assert not sticks_out(page)
