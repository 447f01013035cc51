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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

VARIABLE = "LEHR_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 15_000  # milliseconds; two cores may be busy with other tests


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


@contextmanager
def watch(browser: Browser, *, may_reach_this_machine: bool = False) -> Iterator[tuple[Page, list[str]]]:
    """A fresh page, and the list of what no page of Lehr may do: fail, or ask for something from elsewhere."""
    complaints: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(f"console: {message.text}")

    def check(address: str) -> None:
        parts = urlsplit(address)
        is_here = may_reach_this_machine and (parts.scheme, parts.hostname) == ("http", "127.0.0.1")
        if not is_here and parts.scheme not in ("file", "data", "blob", "about"):
            complaints.append(f"request: {address}")

    context = browser.new_context(offline=not may_reach_this_machine)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.on("console", said)
    page.on("pageerror", lambda error: complaints.append(f"script: {error}"))
    page.on("request", lambda request: check(request.url))
    try:
        yield page, complaints
    finally:
        context.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watch(browser) as (page, complaints):
        yield page
        assert complaints == []


@pytest.fixture
def live_page(browser: Browser) -> Iterator[Page]:
    with watch(browser, may_reach_this_machine=True) as (page, complaints):
        yield page
        assert complaints == []
