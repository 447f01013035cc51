"""Writes the options of ``RunConfig`` as a table into docs/command_line.md: python -m tools.options_table."""

from __future__ import annotations

import re
from pathlib import Path

from lehr.config import ALIASES, Option, options

PAGE = Path(__file__).resolve().parent.parent / "docs" / "command_line.md"
MARKED = re.compile(r"<!-- options -->\n.*?<!-- end -->", re.DOTALL)


def table() -> str:
    """One row for each field: its option, its key in a file, its keyword in Python, its help."""
    rows = ["| option | in a file | in Python | |", "|---|---|---|---|", *map(_row, options().values())]
    return "\n".join(rows)


def filled(page: str) -> str:
    """The page with the table of today."""
    return MARKED.sub(lambda _: f"<!-- options -->\n{table()}\n<!-- end -->", page)


def _row(each: Option) -> str:
    names = [each.keyword, *(alias for alias, name in ALIASES.items() if name == each.keyword)]
    flags = each.flags or tuple("--" + name.replace("_", "-") for name in names)
    shown = ", ".join(f"`{flag}`" for flag in "/".join(flags).split("/")) if each.in_cli else ""
    return f"| {shown} | `[{each.table}] {each.key}` | {', '.join(f'`{name}`' for name in names)} | {each.help} |"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
