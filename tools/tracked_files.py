"""What must not be among the files under version control: paths of one person's machine, and large files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

LARGEST_BYTES = 2**20
_LOCAL_PATH = re.compile(rb"(?<![\w.:~/-])/(?:work|root|home|Users)/\w|(?<![\w.:~/-])/tmp/[v]\b")


def tracked(root: Path) -> tuple[Path, ...]:
    """The files under version control, of those that are still there."""
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
