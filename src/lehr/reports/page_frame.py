"""What the web pages of Lehr share: one file that needs no network, its style for light and dark, and its charts."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files

import jinja2
import plotly.offline
from markupsafe import Markup

from lehr.reports.chart_numbers import numbers
from lehr.reports.rounding import at_most, exactly


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a chart. A number that is not finite is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dash: str = "solid"  # or "dot", or "dash" for what is there to compare with
    is_mark: bool = False  # single points that stand out, such as a reader's own setting
    is_scattered: bool = False  # points that no line goes through
    is_bars: bool = False  # a bar for each point
    is_area: bool = False  # the inside of a closed line, such as all that is likely
    colour: int | None = None  # which of the page's colours; otherwise by its place among the lines
    notes: Sequence[str] = ()  # a text for each point, for a chart whose ``point`` asks for "%{text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """A chart: the element that it is drawn in, its axes, what a point says, and its lines."""

    element: str
    x_title: str
    y_title: str
    x_format: str
    y_format: str
    point: str  # in plotly's words, such as "ε ≤ %{y:.4g}"
    has_markers: bool
    from_zero: bool
    lines: tuple[Line, ...]
    x_scale: str = "linear"  # or "log"
    y_scale: str = "linear"
    x_ticks: tuple[float, ...] = ()  # where numbers stand below the chart; otherwise where plotly puts them
    y_ticks: tuple[float, ...] = ()
    names_lines: bool = False  # also where there is only one, which is one of many elsewhere on the page


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart with a title and what it shows."""

    title: str
    chart: Chart
    note: str = ""


def render(template: str, *, charts: Sequence[Chart], **values: object) -> str:
    """The whole page. Everything but the script of plotly is escaped."""
    # The bundle is a constant of plotly's package, not a value of ours; it holds no closing script tag.
    bundle = Markup(plotly.offline.get_plotlyjs() if charts else "")
    return _environment().get_template(template).render(charts=[*map(_shape, charts)], plotly=bundle, **values)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("lehr.reports").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "separators": (",", ":")}
    environment.filters |= {"at_most": at_most, "exactly": exactly, "numbers": numbers}
    return environment


def _shape(chart: Chart) -> Mapping[str, object]:
    lines = [
        {
            **asdict(line),
            # Plotly reads a little HTML in names, and a name may come from anywhere.
            "name": html.escape(line.name),
            "notes": [*map(html.escape, line.notes)],
            "x": [*map(_or_none, line.x)],
            "y": [*map(_or_none, line.y)],
        }
        for line in chart.lines
    ]
    titles = {"x_title": html.escape(chart.x_title), "y_title": html.escape(chart.y_title)}
    return {**asdict(chart), **titles, "lines": lines}


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
