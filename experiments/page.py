"""Tables in words: for a terminal, as Markdown, and as a web page.

>>> from experiments.experiment import Statistic
>>> cell_words(Statistic((0.98, 0.9862)), Column(title="ours", kind="percent"))
'98.31 ± 0.44 (2)'
>>> cell_words(2.36611, Column(title="ε", kind="epsilon")), cell_words(None, Column(title="ε", kind="epsilon"))
('2.37', '–')
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any

import lehr
from experiments.experiment import Cell, Column, Experiment, Report, Statistic, Table
from lehr import validate
from lehr.reports.page import Page, Paragraph, Section, note, render_page, warning
from lehr.reports.page import Table as PageTable

NOTHING = "–"
QUICK = "quick: small, for a look at how it goes, and no reproduction"
LONGEST_CELL = 32  # on a terminal, where a table has the width of the window


def cell_words(cell: Cell, column: Column) -> str:
    """A cell as text; a mean with its standard deviation between runs and the number of runs."""
    match cell:
        case None | Statistic(values=()):
            return NOTHING
        case str():
            return cell
        case Statistic(mean=float(mean), spread=spread, values=values):
            # A spread is no bound: it is rounded to the nearest.
            plain = replace(column, kind="number") if column.kind == "epsilon" else column
            deviation = "" if spread is None else f" ± {cell_words(spread, plain)}"
            return f"{cell_words(mean, column)}{deviation} ({len(values)})"
        case int() | float():
            return _FORMATS[validate.one_of(_FORMATS, kind=column.kind)](cell, column.digits)
    raise AssertionError(cell)


def _rounded_up(value: float, digits: int) -> str:
    """A bound in fewer digits still holds."""
    if not math.isfinite(value):
        return "∞"
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


_FORMATS: Mapping[str, Callable[[float, int], str]] = {
    "percent": lambda value, digits: f"{100 * value:.{digits}f}",
    "epsilon": _rounded_up,
    "number": lambda value, digits: f"{value:.{digits}f}",
    "count": lambda value, _: f"{value:,.0f}",
    "text": lambda value, _: f"{value:g}",
}


def rows_in_words(table: Table) -> list[list[str]]:
    """Every cell as text."""
    return [[cell_words(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]


def headings(table: Table) -> list[str]:
    """The titles of the columns."""
    return [f"{column.title} (%)" if column.kind == "percent" else column.title for column in table.columns]


def rows_and_remarks(table: Table) -> tuple[list[list[str]], list[str]]:
    """The rows for a terminal: long texts stand below the table, and their cells have numbers."""
    numbers: dict[str, str] = {}
    rows = rows_in_words(table)
    for row in rows:
        for index, cell in enumerate(row):
            if index and len(cell) > LONGEST_CELL:
                row[index] = numbers.setdefault(cell, f"[{len(numbers) + 1}]")
    return rows, [f"{number} {text}" for text, number in numbers.items()]


def markdown(table: Table) -> str:
    """The table and its notes, without its title."""
    sides = [":--" if column.kind == "text" else "--:" for column in table.columns]
    lines = [
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in line) + " |"
        for line in (headings(table), sides, *rows_in_words(table))
    ]
    return "\n\n".join(["\n".join(lines), *table.notes])


def label_quick(report: Report) -> Report:
    """The report of a quick version; every title says that it is one."""
    titles = [each.title if "quick" in each.title.lower() else f"{each.title} ({QUICK})" for each in report.tables]
    tables = tuple(replace(table, title=title) for table, title in zip(report.tables, titles, strict=True))
    return replace(report, tables=tables, notes=(f"{QUICK.capitalize()}.", *report.notes))


def to_json(report: Report) -> dict[str, Any]:
    """The report for programs: unrounded numbers, and means with the values of their runs."""

    def cell_json(cell: Cell) -> object:
        if not isinstance(cell, Statistic):
            return cell
        return {"mean": cell.mean, "spread": cell.spread, "values": [*cell.values]}

    def finite(values: Sequence[float]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in values]

    return {
        "tables": [
            {
                "title": table.title,
                "columns": [asdict(column) for column in table.columns],
                "rows": [[*map(cell_json, row)] for row in table.rows],
                "notes": [*table.notes],
            }
            for table in report.tables
        ],
        "charts": [
            {
                "x_title": chart.x_title,
                "y_title": chart.y_title,
                "lines": [{"name": line.name, "x": finite(line.x), "y": finite(line.y)} for line in chart.lines],
            }
            for chart in report.charts
        ],
        "notes": [*report.notes],
    }


QUICK_PAGE = "Quick: small versions, to see how it goes. Nothing here reproduces the paper."
READING = (
    "A mean stands with its standard deviation between runs and, in brackets, the number of runs. A proven ε is "
    "rounded up. “–”: not run, or not proven."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """An experiment with what it shows, and how far it is."""

    experiment: Experiment
    report: Report
    done: int
    jobs: int


def render(parts: Sequence[Part], *, title: str, is_quick: bool) -> str:
    """The web page."""
    return render_page(
        Page(
            title=title,
            heading=title,
            width="wide",
            introduction=[*([warning(QUICK_PAGE)] if is_quick else []), note(READING)],
            contents=[(part.experiment.name, part.experiment.name) for part in parts] if len(parts) > 1 else (),
            blocks=[_section(part) for part in parts],
            footer=f"Run again by Lehr {lehr.__version__}.",
        )
    )


def _section(part: Part) -> Section:
    name = part.experiment.name
    progress = [note(f"{part.done} of {part.jobs} runs are done.")] if part.jobs else []
    tables = [
        PageTable(
            title=table.title,
            headings=headings(table),
            rows=rows_in_words(table),
            style="rows paper",
            notes=table.notes,
        )
        for table in part.report.tables
    ]
    charts = [replace(chart, element=f"{name}-{number}") for number, chart in enumerate(part.report.charts, start=1)]
    return Section(
        title=f"{name}: {part.experiment.title}",
        element=name,
        is_long=True,
        parts=[Paragraph(part.experiment.about), *progress, *map(note, part.report.notes), *tables, *charts],
    )
