from __future__ import annotations

from pathlib import Path

import pytest

from experiments.experiment import table
from tools import fill_tables
from tools.fill_tables import DOCS, MARKED, fill, machine_sentence, steps_table

# Pages with generated tables.
PAGES = ("command_line.md", "engine.md", "methods.md", "papers.md", "results.md", "tan.md")
ROW = {"network": "net", "batch": 8, "views": 1}
ROWS = [
    {**ROW, "who": "plain", "ms": 2.0, "gib": 1.0, "ratio": 1.0},
    {**ROW, "who": "lehr", "ms": 2.5, "gib": 1.5, "ratio": 1.25},
    {**ROW, "who": "opacus hooks", "ms": 12.5, "gib": 3.0, "ratio": 6.25},
    {**ROW, "who": "opacus ghost", "ms": 25.0, "gib": 2.0, "ratio": 12.5},
]


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in sorted(DOCS.glob("*.md"))])
def test_every_table_of_the_docs_is_up_to_date(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert fill(page) == page, "python -m tools.fill_tables updates the tables"
    assert page.count("<!-- end -->") == len(MARKED.findall(page)), "a mark that is unknown"
    assert page.count("<!-- python -m experiments") == sum(mark["paper"] is not None for mark in MARKED.finditer(page))
    assert path.name not in PAGES or MARKED.search(page)


@pytest.fixture
def _two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = (table("One", "a [count]", [(1,)]), table("Two", "b [count]", [(2,)], "A note."))
    monkeypatch.setattr(fill_tables, "_report_tables", lambda paper, name: tables)


@pytest.mark.usefixtures("_two_tables")
def test_only_what_is_marked_is_replaced() -> None:
    page = "before\n<!-- python -m experiments tan table1 table 2 -->\n{}\n<!-- end -->\nafter\n"
    assert fill(page.format("old")) == page.format("| b |\n| --: |\n| 2 |\n\nA note.")
    every = fill("<!-- python -m experiments tan table1 -->\n<!-- end -->\n")
    assert every.index("**One**") < every.index("| 1 |") < every.index("**Two**") < every.index("| 2 |")
    with pytest.raises(SystemExit, match="table"):
        fill("<!-- python -m experiments tan table1 table 3 -->\n<!-- end -->\n")
    with pytest.raises(FileNotFoundError):
        fill("<!-- none.json -->\n<!-- end -->")


def test_a_step_is_compared_with_plain_sgd_and_the_fastest_mode_of_opacus() -> None:
    assert steps_table(ROWS).splitlines()[2] == "| net, 8 | 2.00 | 2.50 | 1.25 | 1.50 | 12.5 (hooks) | 5.0 |"
    line = steps_table([{**row, "views": 4} for row in ROWS[:2]]).splitlines()[2]
    assert line == "| net, 8, 4 views | 2.00 | 2.50 | 1.25 | 1.50 | – | – |"
    measured = {"machine": "box", "versions": {"torch": "2", "opacus": None}, "commit": "0123456789", "date": "today"}
    assert machine_sentence(measured) == "box; torch 2; commit 0123456; today."
