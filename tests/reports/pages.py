"""A web page taken apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """The elements of a page, and the text of its scripts and of everything else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words += " " + " ".join(data.split())


def charts(page: str) -> dict[str, dict[str, Any]]:
    """The charts of a page by their elements."""
    scripts = Page(page).scripts
    return {chart["element"]: chart for chart in json.loads(scripts[0])} if scripts else {}


def chart_lines(page: str, element: str) -> dict[str, dict[str, Any]]:
    """The lines of one chart by their names."""
    return {line["name"]: line for line in charts(page)[element]["lines"]}
