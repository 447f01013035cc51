from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.step_table import PAGE, filled, table

ROW = {"network": "net", "batch": 8, "views": 1, "device": "cpu", "precision": "float32", "how": ""}
ROWS = [
    {**ROW, "who": "plain", "ms": 2.0, "gib": 1.0, "ratio": 1.0},
    {**ROW, "who": "lehr", "ms": 2.5, "gib": 1.5, "ratio": 1.25},
    {**ROW, "who": "opacus hooks", "ms": 12.5, "gib": 3.0, "ratio": 6.25},
    {**ROW, "who": "opacus ghost", "ms": 25.0, "gib": 2.0, "ratio": 12.5},
]


def test_the_page_says_what_was_measured() -> None:
    page = PAGE.read_text()
    assert filled(page) == page
    assert page.count("<!-- end -->") == 6


def test_a_line_compares_with_plain_and_with_the_best_of_the_peers() -> None:
    assert table(ROWS).splitlines()[2] == "| net, 8 | 2.00 | 2.50 | 1.25 | 1.50 | 12.5 (hooks) | 5.0 |"


def test_a_case_without_peers_has_dashes_and_names_its_views() -> None:
    assert table([{**row, "views": 4} for row in ROWS[:2]]).splitlines()[2].endswith("1.50 | – | – |")
    assert "net, 8, 4 views" in table([{**row, "views": 4} for row in ROWS[:2]])


def test_a_changed_figure_changes_the_page(tmp_path: Path) -> None:
    saved = {"machine": "box", "versions": {"torch": "2", "opacus": None}, "commit": "0123456789", "date": "2026-11-15"}
    (tmp_path / "one.json").write_text(json.dumps({**saved, "rows": ROWS}))
    page = "before\n<!-- one.json -->\nold\n<!-- end -->\n<!-- machine one.json -->\nold\n<!-- end -->\nafter\n"
    found = filled(page, results=tmp_path)
    assert "old" not in found
    assert "| net, 8 |" in found
    assert "box; torch 2; commit 0123456; 2026-11-15." in found
    assert found.startswith("before\n")
    assert found.endswith("after\n")


def test_a_table_without_figures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        filled("<!-- none.json -->\n<!-- end -->", results=tmp_path)
