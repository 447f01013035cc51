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
from types import MappingProxyType
from typing import Any

import lehr
from experiments.experiment import Cell, Column, Experiment, Report, Statistic, Table
from lehr import validate
from lehr.reports.chart import Chart
from lehr.reports.page import Page, Paragraph, Section, note, render_page, warning
from lehr.reports.page import Table as PageTable

NOTHING = "–"
QUICK = "quick: small, for a look at how it goes, and no reproduction"


def cell_words(cell: Cell, column: Column) -> str:
    """A cell as text. Of a mean: its spread between runs where there are several, and how many runs there were."""
    match cell:
        case None:
            return NOTHING
        case str():
            return cell
        case Statistic():
            return _measured(cell, column)
        case _:
            return _KINDS[validate.one_of(_KINDS, kind=column.kind)](cell, column.digits)


def _measured(cell: Statistic, column: Column) -> str:
    if cell.mean is None:
        return NOTHING
    mean = cell_words(cell.mean, column)
    # A spread is no bound: it is rounded as numbers are.
    plain = replace(column, kind="number") if column.kind == "epsilon" else column
    spread = "" if cell.spread is None else f" ± {cell_words(cell.spread, plain)}"
    return f"{mean}{spread} ({len(cell.values)})"


def _percent(value: float, digits: int) -> str:
    return f"{100 * value:.{digits}f}"


def _epsilon(value: float, digits: int) -> str:
    """Rounded up: a bound in fewer digits still holds."""
    if not math.isfinite(value):
        return "∞"
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING))


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}"


def _count(value: float, digits: int) -> str:
    return f"{value:,.0f}"


def _text(value: float, digits: int) -> str:
    return f"{value:g}"


_KINDS: Mapping[str, Callable[[float, int], str]] = MappingProxyType(
    {"percent": _percent, "epsilon": _epsilon, "number": _number, "count": _count, "text": _text}
)


def rows_in_words(table: Table) -> list[list[str]]:
    """Every cell as text."""
    return [[cell_words(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]


def headings(table: Table) -> list[str]:
    """What stands over the columns."""
    return [f"{column.title} (%)" if column.kind == "percent" else column.title for column in table.columns]


LONGEST_CELL = 32  # on a terminal, where a table has the width of a window


def with_remarks(table: Table) -> tuple[list[list[str]], list[str]]:
    """The rows for a terminal: long texts stand below, numbered, and their cells have the numbers."""
    remarks: dict[str, str] = {}
    rows = [
        [_or_remark(cell, remarks) if place and len(cell) > LONGEST_CELL else cell for place, cell in enumerate(row)]
        for row in rows_in_words(table)
    ]
    return rows, [f"{number} {text}" for text, number in remarks.items()]


def _or_remark(cell: str, remarks: dict[str, str]) -> str:
    return remarks.setdefault(cell, f"[{len(remarks) + 1}]")


def markdown(table: Table) -> str:
    """The table and its notes, without its title."""
    sides = [":--" if column.kind == "text" else "--:" for column in table.columns]
    lines = [headings(table), sides, *rows_in_words(table)]
    drawn = "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)
    notes = "".join(f"\n\n{note}" for note in table.notes)
    return f"{drawn}{notes}"


def _escaped(cell: str) -> str:
    return " ".join(cell.replace("|", "\\|").split())


def labelled(shown: Report, *, is_quick: bool) -> Report:
    """The same; where it is quick, every title says so, if it does not already."""
    if not is_quick:
        return shown
    titles = [table.title if "quick" in table.title.lower() else f"{table.title} ({QUICK})" for table in shown.tables]
    tables = tuple(replace(table, title=title) for table, title in zip(shown.tables, titles, strict=True))
    return replace(shown, tables=tables, notes=(f"{QUICK[0].upper()}{QUICK[1:]}.", *shown.notes))


def to_json(shown: Report) -> dict[str, Any]:
    """The same for programs: numbers as they are, means with the values that they are of."""
    return {
        "tables": [_table_shape(table) for table in shown.tables],
        "charts": [_chart_shape(chart) for chart in shown.charts],
        "notes": [*shown.notes],
    }


def _table_shape(table: Table) -> dict[str, Any]:
    return {
        "title": table.title,
        "columns": [asdict(column) for column in table.columns],
        "rows": [[_cell_shape(cell) for cell in row] for row in table.rows],
        "notes": [*table.notes],
    }


def _cell_shape(cell: Cell) -> object:
    if not isinstance(cell, Statistic):
        return cell
    return {"mean": cell.mean, "spread": cell.spread, "values": [*cell.values]}


def _chart_shape(chart: Chart) -> dict[str, Any]:
    lines = [{"name": line.name, "x": _finite(line.x), "y": _finite(line.y)} for line in chart.lines]
    return {"x_title": chart.x_title, "y_title": chart.y_title, "lines": lines}


def _finite(values: Any) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


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
            has_contents=len(parts) > 1,
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
            numeric=[column.kind != "text" for column in table.columns],
            style="rows paper",
            has_heading=True,
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
