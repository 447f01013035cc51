"""Writes the papers' tables into the pages of docs/ from the kept results: ``python -m tools.fill_tables``.

Between ``<!-- python -m experiments PAPER NAME -->`` and ``<!-- end -->`` stand all tables of an experiment with their
titles, drawn from experiments/results/papers; with ``table N`` after the name, the N-th alone and without its title.
Quick results are never drawn.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

from experiments.experiment import Outcomes, Size, Table, find_experiment
from experiments.page import markdown
from experiments.store import ResultFile, outcomes_in

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "experiments" / "results" / "papers"
MARKED = re.compile(
    r"<!-- python -m experiments (?P<paper>[\w-]+) (?P<name>[\w-]+)(?: table (?P<number>\d+))? -->\n.*?<!-- end -->",
    re.DOTALL,
)

TablesOf = Callable[[str, str], tuple[Table, ...]]


def tables_from(results: Path) -> TablesOf:
    """What draws the tables of an experiment from the kept files of a folder. Each experiment is computed once."""
    kept = [ResultFile.read(path) for path in sorted(results.glob("*.json"))]
    outcomes = outcomes_in(*(each for each in kept if not each.is_quick)) if kept else Outcomes({})

    @cache
    def tables(paper: str, name: str) -> tuple[Table, ...]:
        return find_experiment(paper, name).report(outcomes, Size()).tables

    return tables


def filled(page: str, tables: TablesOf) -> str:
    """The page with every table as the results say."""

    def replaced(found: re.Match[str]) -> str:
        head, _, _ = found[0].partition("\n")
        return f"{head}\n{_drawn(tables(found['paper'], found['name']), found['number'])}\n<!-- end -->"

    return MARKED.sub(replaced, page)


def _drawn(tables: tuple[Table, ...], number: str | None) -> str:
    if number is None:
        return "\n\n".join(f"**{table.title}**\n\n{markdown(table)}" for table in tables)
    if not 1 <= int(number) <= len(tables):
        raise SystemExit(f"table must be from 1 to {len(tables)}; given: {number}")
    return markdown(tables[int(number) - 1])


def main() -> None:
    tables = tables_from(RESULTS)
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        new = filled(page, tables)
        if new != page:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: tables written anew")


if __name__ == "__main__":
    main()
