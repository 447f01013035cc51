"""The notebooks of the tutorials have the text and the code of their pages, whose examples pytest runs."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest

from tools.notebooks import PAGES, cells_of, notebook

SOURCE = ("cell_type", "id", "source")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_notebook_is_executed_and_agrees_with_its_page(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    expected = cells_of(PAGES[path], {})
    assert [[cell[key] for key in SOURCE] for cell in cells] == [[cell[key] for key in SOURCE] for cell in expected]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    # Without the code that makes notebooks: the cells are all examples of the page, and printed what it says.
    examples = doctest.DocTestParser().get_examples(PAGES[path].read_text(encoding="utf-8"))
    assert "\n".join(cell["source"] for cell in code).split() == "".join(each.source for each in examples).split()
    printed = ["\n".join(each.get("text") or each["data"]["text/plain"] for each in cell["outputs"]) for cell in code]
    wants, gots = [each.want.split() for each in examples if each.want], [each.split() for each in printed if each]
    for want, got in zip(wants, gots, strict=True):
        assert doctest.OutputChecker().check_output(" ".join(want), " ".join(got), doctest.ELLIPSIS)
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)


def test_a_cell_ends_where_something_is_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    examples = ">>> one = 1\n>>> one + 1\n2\n>>> print('a')\na\n>>> one = 2\n"
    page.write_text(f"# Title\n\n```python\n{examples}\n```\n\nEnd.\n")
    cells = notebook(page)["cells"]
    assert [cell["source"] for cell in cells] == ["# Title", "one = 1\none + 1", "print('a')", "one = 2", "End."]
    assert cells[1]["outputs"][0]["data"] == {"text/plain": "2"}
    assert cells[2]["outputs"][0]["text"] == "a\n"
    assert cells[3]["outputs"] == []


def test_an_example_that_fails_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n>>> 1 + 1\n3\n\n```\n")
    with pytest.raises(SystemExit, match="page"):
        notebook(page)
