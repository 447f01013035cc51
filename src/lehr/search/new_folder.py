"""A folder for a search that is about to begin; where it does not begin, the folder is as it was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lehr.errors import StoreError
from lehr.run_folder import refuse_used


@contextmanager
def new_folder(directory: Path) -> Iterator[None]:
    """An empty folder, made where there is none; everything that was put into it is taken away where that fails."""
    refuse_used(directory)
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        with suppress(OSError):
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for folder in made:
                folder.rmdir()
        if isinstance(error, OSError):
            raise StoreError(f"cannot use {directory}: {error.strerror}") from error
        raise
