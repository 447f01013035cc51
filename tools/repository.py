"""What holds for the files of the repository: no path of one machine, no large file, dependencies that agree.

Three files name the dependencies: pyproject.toml (what is accepted), constraints.txt (what was tested) and
docs/dependencies.md (why each is there).
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path

LARGEST_BYTES = 2**20
_LOCAL_PATH = re.compile(rb"(?<![\w.:~/-])/(?:work|root|home|Users)/\w|(?<![\w.:~/-])/tmp/[v]\b")


def tracked_files(root: Path) -> tuple[Path, ...]:
    """The existing files under version control."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return tuple(path for name in listing.split("\0") if name and (path := root / name).is_file())


def local_paths(files: Iterable[Path]) -> list[str]:
    """Each line that names a path of one machine, as ``file:line``."""
    return [
        f"{file}:{number}"
        for file in files
        for number, line in enumerate(file.read_bytes().splitlines(), start=1)
        if _LOCAL_PATH.search(line)
    ]


def large_files(files: Iterable[Path]) -> list[str]:
    """The files of more than one MiB."""
    return [str(file) for file in files if file.stat().st_size > LARGEST_BYTES]


def declared(pyproject: Path) -> set[str]:
    """The names of all dependencies, extras included."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    return {_normal(re.split(r"[^\w.-]", entry)[0]) for group in groups for entry in group}


def pinned(constraints: Path) -> dict[str, str]:
    """The exact version of each pinned package."""
    pins = re.findall(r"^([\w.-]+)==([^\s#]+)", constraints.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {_normal(name): version for name, version in pins}


def explained(table: Path) -> set[str]:
    """The names in the first column of the Markdown tables of a page."""
    rows = re.findall(r"^\| `([^`|]+)` \|", table.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return set(map(_normal, rows))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
