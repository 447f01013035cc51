"""A real browser, started once: Chromium as it is installed, driven by playwright, which downloads none of its own.

    page         opens files, and has no network
    live_page    opens what is served on this machine, and nothing else

A test fails if the page writes an error to the console, if its scripts fail, or if it asks for anything from elsewhere.
Where there is no Chromium, the tests are skipped. ``LEHR_CHROMIUM`` names one that is not on the path.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.watching import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

VARIABLE = "LEHR_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Where Chromium is, if anywhere. One that is named must be there: whoever names it wants these tests to run."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return next((path for name in NAMES if (path := shutil.which(name))), None)
    if not Path(named).is_file():
        pytest.fail(f"{VARIABLE} must be the path of Chromium; {named!r} is no file")
    return named


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Started for the first test that asks for it, and shared by all: what differs is in the contexts."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install lehr[test]"
    )
    path = chromium()
    if path is None:
        pytest.skip(f"there is no Chromium: install Debian's chromium, or name one in {VARIABLE}")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A fresh page without a network, for files."""
    with Watch(may_reach_this_machine=False).over(browser) as page:
        yield page


@pytest.fixture
def live_page(browser: Browser) -> Iterator[Page]:
    """A fresh page that reaches this machine and no other."""
    with Watch(may_reach_this_machine=True).over(browser) as page:
        yield page
