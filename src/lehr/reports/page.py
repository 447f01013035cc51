"""One builder for all web pages: one file without network access, light and dark, readable without scripts.

A ``Page`` has a heading, an introduction and blocks. A block is a ``Section`` with a title and parts, or a ``Chart``,
``Table`` or ``Facts`` in a section of its own, or several of these side by side. All text is escaped.
"""

from __future__ import annotations

import base64
import html
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar

import jinja2
import plotly.offline
from markupsafe import Markup

from lehr.reports.chart import Chart, thin
from lehr.rounding import at_most

MOST_ROWS = 80  # of the numbers of one chart, all lines together
FEWEST_OF_A_LINE = 3

# A number, also with its sign, its unit, its spread and the count of runs; or none.
_NUMBER = re.compile(r"–?|∞|[-+−×]? ?[\d.,]+ ?[%s]?( ± [\d.,]+)?( \(\d+\))?")


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
    """Names and values; a value that is a sequence becomes a list. ``fold`` is the text that opens them by a click."""

    rows: Sequence[tuple[str, str | Sequence[str]]]
    title: str = ""
    fold: str = ""
    kind: ClassVar[str] = "facts"

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Headings and rows. ``style`` "cards" shows each row as a card on a phone; its first cell names the row."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    style: str = "rows"
    links: Sequence[str] = ()  # of the first cell, by row
    kind: ClassVar[str] = "table"

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def is_numeric(self) -> list[bool]:
        """Whether a column has numbers, which are aligned; the first one and those of cards never are."""
        columns = [*zip(*self.rows, strict=True)] or [()] * len(self.headings)
        may_be = self.style != "cards"
        return [may_be and place > 0 and all(map(_NUMBER.fullmatch, cells)) for place, cells in enumerate(columns)]


@dataclass(frozen=True, slots=True)
class Code:
    """Text as it is."""

    text: str
    kind: ClassVar[str] = "code"


Part = Paragraph | Facts | Table | Chart | Code


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A titled card. ``badge`` is a short verdict behind the title."""

    title: str
    parts: Sequence[Part]
    badge: str = ""
    is_bad: bool = False
    is_long: bool = False  # may be broken between printed pages
    is_folded: bool = False  # opened by a click; it has no charts
    has_columns: bool = False  # several groups of facts side by side
    element: str = ""

    @property
    def is_figure(self) -> bool:
        """Whether a chart has the id of the section."""
        return any(isinstance(part, Chart) and part.element == self.element for part in self.parts)


Block = Section | Chart | Table | Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """One answer at the top of a page: a value in large letters, and what it means."""

    title: str
    value: str = ""
    notes: Sequence[str] = ()
    is_bad: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A whole page. ``headline`` is the number that people came for, with a ``small`` text behind it.

    ``tiles`` are the first answers. ``contents`` are titles with the elements that they lead to. Charts without lines,
    and tables and facts without rows, are left out.
    """

    title: str  # of the browser's tab
    heading: str
    blocks: Sequence[Block | Iterable[Block]] = ()
    headline: str = ""
    small: str = ""
    is_bad: bool = False
    state: str = ""
    tiles: Sequence[Tile] = ()
    introduction: Sequence[Paragraph] = ()
    footer: str = ""
    width: str = ""  # "wide" for large tables
    contents: Sequence[tuple[str, str]] = ()
    reload_seconds: int = 0


def render_page(page: Page) -> str:
    """The HTML file."""
    rows = [sections for block in page.blocks if (sections := _sections(block))]
    parts = [part for sections in rows for section in sections for part in section.parts]
    charts = [_chart_json(part) for part in parts if isinstance(part, Chart)]
    template = _environment().get_template("page.html.jinja")
    return template.render(page=page, rows=rows, charts=charts, plotly=Markup(_packed_plotly() if charts else ""))


def _sections(block: Block | Iterable[Block]) -> list[Section]:
    blocks = [block] if isinstance(block, Block) else block
    return [one if isinstance(one, Section) else _section_of(one) for one in blocks if one]


def _section_of(part: Chart | Table | Facts) -> Section:
    if isinstance(part, Chart):
        return Section(title=part.heading, parts=[part], element=part.element)
    return Section(title=part.title, parts=[part])


def chart_numbers(chart: Chart) -> Table:
    """The points of a chart as a table, evenly thin out where they are many. An ε is rounded up."""
    lines = [line for line in chart.lines if not line.is_area]
    most = max(FEWEST_OF_A_LINE, MOST_ROWS // max(1, len(lines)))
    labels = dict(zip(chart.x_ticks, chart.x_labels, strict=False))
    rows = [
        (
            line.name,
            labels.get(x) or _number_text(x, chart.x_title, chart.x_format),
            _number_text(y, chart.y_title, chart.y_format),
        )
        for line in lines
        for x, y in thin([*zip(line.x, line.y, strict=True)], most=most)
    ]
    headings, first = ("line", chart.x_title, chart.y_title), 0 if len(lines) > 1 else 1
    title = f"The numbers: {chart.heading}"
    return Table(title=title, headings=headings[first:], rows=[row[first:] for row in rows])


def _number_text(value: float, title: str, form: str) -> str:
    if not math.isfinite(value):
        return "–"
    if title.startswith("ε"):
        return at_most(value)
    if form.endswith("%"):
        return f"{value:.2%}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.5g}"


def _capitalised(title: str) -> str:
    return title[:1].upper() + title[1:] if title[:1].isascii() else title  # a capital ε is no ε


@cache
def _packed_plotly() -> str:
    """plotly.js, compressed to 2 MB; the browser unpacks it."""
    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode("ascii")


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("lehr.reports").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.filters |= {"numbers": chart_numbers, "capitalised": _capitalised}
    return environment


def _chart_json(chart: Chart) -> Mapping[str, object]:
    # Plotly renders some HTML in names, and a name may come from anywhere.
    lines = [
        {
            **asdict(line),
            "name": html.escape(line.name),
            "notes": [*map(html.escape, line.notes)],
            "x": [value if math.isfinite(value) else None for value in line.x],
            "y": [value if math.isfinite(value) else None for value in line.y],
        }
        for line in chart.lines
    ]
    x_title, y_title = html.escape(chart.x_title), html.escape(chart.y_title)
    point = f"{x_title} %{{x:{_hover_format(chart.x_format)}}}<br>{y_title} %{{y:{_hover_format(chart.y_format)}}}"
    changed = {"x_title": x_title, "y_title": y_title, "point": chart.point or point, "lines": lines}
    return {**asdict(chart), **changed, "x_labels": [*map(html.escape, chart.x_labels)]}


def _hover_format(form: str) -> str:
    return ".2%" if form.endswith("%") else form if form.endswith("d") else ".5~g"
