"""Watches a page, and remembers what no page of Lehr may do: fail, or ask for something from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request

OWN = ("file", "data", "blob", "about")
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")
PATIENCE = 15_000  # milliseconds; two cores may be busy with other tests


class Watch:
    """What went wrong on one page, in the order in which it did."""

    def __init__(self, *, may_reach_this_machine: bool) -> None:
        self.complaints: list[str] = []
        self._may_reach_this_machine = may_reach_this_machine

    @contextmanager
    def over(self, browser: Browser) -> Iterator[Page]:
        """A page in a context of its own. Where it ends without a failure, there must be nothing to complain about."""
        context = browser.new_context(offline=not self._may_reach_this_machine)
        context.set_default_timeout(PATIENCE)
        try:
            page = context.new_page()
            page.on("console", self._said)
            page.on("pageerror", self._failed)
            page.on("request", self._asked)
            yield page
        finally:
            context.close()
        assert self.complaints == []

    def _said(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text}")

    def _failed(self, error: Error) -> None:
        self.complaints.append(f"script: {error}")

    def _asked(self, request: Request) -> None:
        if not self._is_allowed(request.url):
            self.complaints.append(f"request: {request.url}")

    def _is_allowed(self, address: str) -> bool:
        parts = urlsplit(address)
        is_here = self._may_reach_this_machine and parts.scheme == "http" and parts.hostname in THIS_MACHINE
        return parts.scheme in OWN or is_here
