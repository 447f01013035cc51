"""A new folder that appears whole or not at all.

It is built under a hidden name beside its place, flushed to the disk, and then takes its place in one step. What a
killed process leaves of it is removed when a folder is next made at the same place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lehr.errors import LehrError, StoreError
from lehr.files import lock, whole_file


@contextmanager
def made(directory: Path, *, locked_by: str | None = None) -> Iterator[Path]:
    """The hidden folder to fill; at the end it becomes ``directory``, which must not exist or be empty.

    ``locked_by`` is a file in it, in a folder for its owner alone, that is locked meanwhile: another process that makes
    the same folder is refused.
    """
    place = Path(os.path.realpath(directory))  # a link stays a link
    beside = _hidden(place)
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_over(place, locked_by)
        beside.mkdir()
        held = None
        try:
            if locked_by is not None:
                (beside / locked_by).parent.mkdir(mode=0o700, exist_ok=True)
                held = lock.taken(beside / locked_by, for_what=str(directory))
            yield beside
            for folder in (beside, *filter(Path.is_dir, beside.rglob("*"))):
                whole_file.flush_folder(folder)
            beside.rename(place)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        finally:
            if held is not None:
                os.close(held)
        whole_file.flush_folder(place.parent)
    except BaseException as error:
        with suppress(OSError):
            for folder in missing:
                folder.rmdir()
        if isinstance(error, OSError):
            raise StoreError(f"cannot use {directory}: {error.strerror}") from error
        raise


def remove(directory: Path, *, locked_by: str) -> None:
    """Remove a folder in one step: one that has lost some of its files could neither be used nor made anew."""
    place = Path(os.path.realpath(directory))
    try:
        _remove_left_over(place, locked_by)
        shutil.rmtree(place.rename(_hidden(place)))
    except OSError as error:
        raise StoreError(f"cannot remove {directory}: {error.strerror}") from error


@contextmanager
def removed_if_refused(directory: Path, *, locked_by: str) -> Iterator[None]:
    """Remove a new folder where what comes after it is refused: nothing began. What fails otherwise may have begun."""
    try:
        yield
    except LehrError as error:
        if not isinstance(error, StoreError):
            remove(directory, locked_by=locked_by)
        raise


def _remove_left_over(place: Path, locked_by: str | None) -> None:
    """Remove what a killed process left of a folder that it made or removed; refused while a process is at it."""
    beside = _hidden(place)
    if locked_by is not None and (beside / locked_by).parent.is_dir():
        os.close(lock.taken(beside / locked_by, for_what=str(place)))
    if beside.exists():
        shutil.rmtree(beside)


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")
