"""What the web pages of Lehr share: one file that needs no network, its style for light and dark, and its charts."""

from __future__ import annotations

import base64
import html
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib.resources import files

import jinja2
import plotly.offline
from markupsafe import Markup

from lehr.reports.chart import Chart, numbers
from lehr.reports.rounding import at_most, exactly


def render(template: str, *, charts: Sequence[Chart], **values: object) -> str:
    """The whole page. Everything but the script of plotly is escaped."""
    packed = Markup(_packed_plotly() if charts else "")
    return _environment().get_template(template).render(charts=[*map(_shape, charts)], plotly=packed, **values)


@cache
def _packed_plotly() -> str:
    """The drawing library, compressed, in letters that no page gives a meaning to: 2 MB, where it is 4.8 MB unpacked.

    All of it, as the package of plotly has it: its smaller builds are not in that package. The browser unpacks it.
    """
    return base64.b64encode(zlib.compress(plotly.offline.get_plotlyjs().encode(), 9)).decode("ascii")


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
