"""One builder for all web pages: one file without network access, light and dark, readable without scripts.

A ``Page`` has a heading, an introduction and blocks. A block is a ``Section``, or several side by side. A section has a
title and parts: paragraphs, ``Facts``, ``Table``, ``Chart`` and ``Code``. All text is escaped.
"""

from __future__ import annotations

import base64
import html
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar

import jinja2
import plotly.offline
from markupsafe import Markup

from lehr.reports.chart import Chart, numbers

INLINE = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A paragraph; ``style`` is "quiet" for an explanation and "warned" for what must not be overlooked."""

    text: str
    style: str = ""
    kind: ClassVar[str] = "paragraph"


def note(text: str) -> Paragraph:
    return Paragraph(text, "quiet")


def warning(text: str) -> Paragraph:
    return Paragraph(text, "warned")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Names and values; a value that is a sequence becomes a list."""

    rows: Sequence[tuple[str, str | Sequence[str]]]
    title: str = ""
    are_numbers: bool = False
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Headings and rows. ``style`` "cards" shows each row as a card on a phone; its first cell names the row."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool] = ()  # by column
    style: str = ""
    highlighted: int | None = None  # a row
    notes: Sequence[str] = ()
    has_heading: bool = False
    element: str = ""
    fields: Sequence[str] = ()  # a name for each column, as its class
    links: Sequence[str] = ()  # of the first cell, by row
    row_classes: Sequence[str] = ()
    keys: Sequence[str] = ()  # by row, for scripts
    kind: ClassVar[str] = "table"


@dataclass(frozen=True, slots=True)
class Code:
    """Text as it is."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelAxes:
    """A parallel-coordinates plot: each of the lines crosses every axis. Numbers lie between 0 and 1."""

    axes: Sequence[Mapping[str, object]]  # name, ticks: pairs of height and text
    crossings: Sequence[Mapping[str, object]]  # heights, text, share: 1 is the best line
    label: str
    kind: ClassVar[str] = "parallel"


Part = Paragraph | Facts | Table | Chart | Code | ParallelAxes


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A titled card. ``badge`` is a short verdict behind the title."""

    title: str
    parts: Sequence[Part]
    badge: str = ""
    is_bad: bool = False
    is_long: bool = False  # may be broken between printed pages
    element: str = ""

    @property
    def is_figure(self) -> bool:
        """Whether a chart has the id of the section."""
        return any(isinstance(part, Chart) and part.element == self.element for part in self.parts)


def figure(chart: Chart) -> Section:
    """A chart in a section of its own, with its note."""
    parts: list[Part] = [chart, *([note(chart.note)] if chart.note else [])]
    return Section(title=chart.heading, parts=parts, element=chart.element)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A whole page. ``headline`` is the number that people came for, with a ``small`` text behind it."""

    title: str  # of the browser's tab
    heading: str
    blocks: Sequence[Section | Sequence[Section]] = ()
    headline: str = ""
    small: str = ""
    is_bad: bool = False
    state: str = ""
    is_open: bool = False
    introduction: Sequence[Paragraph] = ()
    footer: str = ""
    width: str = ""  # "wide" for large tables
    has_contents: bool = False
    status: str = ""  # with a search field, for the script of the list of runs
    closing: Sequence[Paragraph] = ()
    link: tuple[str, str] | None = None
    script: str = ""  # the address of one, where the page is served
    policy: str = INLINE

    @property
    def rows(self) -> list[Sequence[Section]]:
        return [[block] if isinstance(block, Section) else block for block in self.blocks if block]

    @property
    def parts(self) -> Iterator[Part]:
        return (part for row in self.rows for section in row for part in section.parts)


def render_page(page: Page) -> str:
    """The HTML file."""
    charts = [_chart_json(part) for part in page.parts if isinstance(part, Chart)]
    parallel = next((part for part in page.parts if isinstance(part, ParallelAxes)), None)
    return (
        _environment()
        .get_template("page.html.jinja")
        .render(page=page, charts=charts, parallel=parallel, plotly=Markup(_packed_plotly() if charts else ""))
    )


def resource(name: str) -> str:
    """A text file of this package."""
    return files("lehr.reports").joinpath(name).read_text(encoding="utf-8")


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed to 2 MB; the browser unpacks it."""
    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode("ascii")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(resource),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.filters["numbers"] = numbers
    return environment


def _chart_json(chart: Chart) -> Mapping[str, object]:
    lines = [
        {
            **asdict(line),
            # Plotly renders some HTML in names, and a name may come from anywhere.
            "name": html.escape(line.name),
            "notes": [*map(html.escape, line.notes)],
            "x": [value if math.isfinite(value) else None for value in line.x],
            "y": [value if math.isfinite(value) else None for value in line.y],
        }
        for line in chart.lines
    ]
    titles = {"x_title": html.escape(chart.x_title), "y_title": html.escape(chart.y_title)}
    return {**asdict(chart), **titles, "lines": lines}
