"""Makes the executed notebooks in docs/tutorials from the pages of the tutorials: ``python -m tools.notebooks``.

Each example (``>>>``) of a page becomes part of a code cell, which ends where something is printed. Everything else is
text. pytest runs the examples of the pages, and ``tests/tools/test_notebooks.py`` compares notebooks with pages.
"""

from __future__ import annotations

import ast
import doctest
import json
import re
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
PAGES = {
    TUTORIALS / "digits.ipynb": TUTORIALS.parent / "tutorial.md",
    TUTORIALS / "own_data.ipynb": TUTORIALS / "own_data.md",
    TUTORIALS / "fine_tuning.ipynb": TUTORIALS / "fine_tuning.md",
}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


class _Outputs(doctest.DocTestRunner):
    """Runs the examples of a page, and keeps what each of them prints."""

    def __init__(self) -> None:
        super().__init__(optionflags=doctest.ELLIPSIS, verbose=False)
        self.by_line: dict[int, str] = {}

    def report_success(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:
        self.by_line[example.lineno] = got


def run_page(page: Path) -> dict[int, str]:
    """What the examples of a page print, by line. An example that prints something else than the page is an error."""
    test = doctest.DocTestParser().get_doctest(page.read_text(encoding="utf-8"), {}, page.name, str(page), 0)
    runner = _Outputs()
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        failed, _ = runner.run(test)
    if failed:
        raise SystemExit(f"{failed} examples of {page} fail")
    return runner.by_line


def cells_of(page: Path, outputs: dict[int, str]) -> list[dict[str, Any]]:
    """The cells of a page's notebook."""
    text = page.read_text(encoding="utf-8")
    if page.parent != TUTORIALS:  # links are relative to the notebook
        text = re.sub(r"\]\((?!https?:|#)", "](../", text).replace("](../tutorials/", "](")
    cells: list[dict[str, Any]] = []
    line = 0
    for number, part in enumerate(re.split(r"^```python\n(>>> .*?)^```\n", text, flags=re.MULTILINE | re.DOTALL)):
        if number % 2:
            cells += _code(part, line + 1, outputs)
        elif part.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": part.strip()})
        line += part.count("\n") + (2 if number % 2 else 0)
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return cells


def _code(block: str, first_line: int, outputs: dict[int, str]) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    source = ""
    examples = doctest.DocTestParser().get_examples(block)
    for example in examples:
        source += example.source
        if example.want or example is examples[-1]:
            printed = outputs.get(first_line + example.lineno, "")
            last = ast.parse(example.source).body[-1]
            value = ""  # of an expression: what stands on the last line
            if isinstance(last, ast.Expr) and not ast.unparse(last).startswith("print("):
                printed, _, value = printed.rstrip("\n").rpartition("\n")
            shown: list[dict[str, Any]] = []
            if printed:
                shown.append({"output_type": "stream", "name": "stdout", "text": printed})
            if value:
                shown.append({"output_type": "execute_result", "data": {"text/plain": value}, "metadata": {}})
            cells.append({"cell_type": "code", "metadata": {}, "source": source.rstrip("\n"), "outputs": shown})
            source = ""
    return cells


def notebook(page: Path) -> dict[str, Any]:
    """The executed notebook of a page."""
    cells = cells_of(page, run_page(page))
    for count, cell in enumerate((cell for cell in cells if cell["cell_type"] == "code"), start=1):
        cell["execution_count"] = count
        for shown in cell["outputs"]:
            if shown["output_type"] == "execute_result":
                shown["execution_count"] = count
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
