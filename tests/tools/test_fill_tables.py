from __future__ import annotations

from pathlib import Path

import pytest

from experiments.experiment import Column, Table
from tools.fill_tables import DOCS, MARKED, RESULTS, TablesOf, filled, tables_from

# Pages whose tables all come from kept results.
PAGES = ("methods.md", "results.md", "tan.md")
ONE = Table(title="One", columns=(Column(title="a", kind="count"),), rows=((1,),))
TWO = Table(title="Two", columns=(Column(title="b", kind="count"),), rows=((2,),), notes=("Said below.",))


@pytest.fixture(scope="module")
def tables() -> TablesOf:
    return tables_from(RESULTS)


def made_up(paper: str, name: str) -> tuple[Table, ...]:
    assert (paper, name) == ("tan", "table1")
    return ONE, TWO


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in sorted(DOCS.glob("*.md"))])
def test_every_table_of_the_docs_is_what_the_kept_results_say(path: Path, tables: TablesOf) -> None:
    page = path.read_text(encoding="utf-8")
    assert filled(page, tables) == page, "python -m tools.fill_tables writes the tables anew"
    assert page.count("<!-- python -m experiments") == len(MARKED.findall(page)), "a marked table without an end"
    assert path.name not in PAGES or MARKED.search(page)


def test_a_table_is_written_anew_and_what_stands_around_it_stays() -> None:
    page = "before\n<!-- python -m experiments tan table1 table 2 -->\n{}\n<!-- end -->\nafter\n"
    new = page.format("| b |\n| --: |\n| 2 |\n\nSaid below.")
    assert filled(page.format("old"), made_up) == new


def test_without_a_number_all_tables_stand_with_their_titles() -> None:
    found = filled("<!-- python -m experiments tan table1 -->\n<!-- end -->\n", made_up)
    assert found.index("**One**") < found.index("| 1 |") < found.index("**Two**") < found.index("| 2 |")


def test_a_table_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SystemExit, match="from 1 to 2; given: 3"):
        filled("<!-- python -m experiments tan table1 table 3 -->\n<!-- end -->\n", made_up)
