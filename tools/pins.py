"""Three files name the dependencies: what is accepted, what was tested, and why each is there. They must agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def declared(pyproject: Path) -> frozenset[str]:
    """The names of all dependencies, those of the extras included."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    return frozenset(_normal(_NAME.match(entry)[0]) for group in groups for entry in group)  # type: ignore[index]


def pinned(constraints: Path) -> dict[str, str]:
    """The exact version of each pinned package."""
    lines = (line.split("#")[0].strip() for line in constraints.read_text(encoding="utf-8").splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {_normal(name): version for name, version in pairs}


def explained(table: Path) -> frozenset[str]:
    """The names in the first column of the Markdown tables of a page."""
    rows = re.findall(r"^\| `([^`|]+)` \|", table.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return frozenset(map(_normal, rows))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
