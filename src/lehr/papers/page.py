"""Tables and figures of a paper as one web page, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import lehr
from lehr.papers.experiment import Experiment
from lehr.papers.table import Shown, Table
from lehr.papers.words import headings, rows_in_words
from lehr.reports import page_frame
from lehr.reports.chart import Chart

TEMPLATE = "paper_page.html.jinja"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """An experiment with what it shows, and how far it is."""

    experiment: Experiment
    shown: Shown
    done: int
    jobs: int


def render(parts: Sequence[Part], *, title: str, is_quick: bool) -> str:
    """The page. Everything but the script of plotly is escaped."""
    charted = [(part, _named(part)) for part in parts]
    return page_frame.render(
        TEMPLATE,
        charts=[chart for _, charts in charted for chart in charts],
        heading=title,
        is_quick=is_quick,
        parts=[_shape(part, charts) for part, charts in charted],
        version=lehr.__version__,
    )


def _named(part: Part) -> list[Chart]:
    """Its charts, each in an element of its own."""
    name = part.experiment.name
    return [replace(chart, element=f"{name}-{place}") for place, chart in enumerate(part.shown.charts, start=1)]


def _shape(part: Part, charts: Sequence[Chart]) -> dict[str, Any]:
    return {
        "name": part.experiment.name,
        "title": part.experiment.title,
        "about": part.experiment.about,
        "done": part.done,
        "jobs": part.jobs,
        "tables": [_table(table) for table in part.shown.tables],
        "charts": [{"chart": chart, "title": f"{chart.y_title} against {chart.x_title}"} for chart in charts],
        "notes": part.shown.notes,
    }


def _table(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "headings": headings(table),
        "is_number": [column.kind != "text" for column in table.columns],
        "rows": rows_in_words(table),
        "notes": table.notes,
    }
