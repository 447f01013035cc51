"""The page at the top of the package names every part of it."""

from __future__ import annotations

from pathlib import Path

import lehr.training


def test_every_file_is_on_the_list() -> None:
    listed = lehr.training.__doc__ or ""
    files = {path.stem for path in Path(lehr.training.__path__[0]).glob("*.py")} - {"__init__"}
    assert files
    assert {name for name in files if f"``{name}``" not in listed} == set()
