"""Atomic writing, bounded reading, locks, and atomic folders.

A file is written under a temporary name, flushed to the disk and renamed: after a crash or on a full disk the old file
is still there. A database (a budget, a ledger) is never replaced. Only regular files are read, up to a size that the
reader states: a device never ends, a pipe may never begin, and a sparse file may be larger than the memory.

A new folder is filled under a hidden name next to its final one, flushed and renamed. The next process that makes the
same folder removes what a killed process left.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from lehr.errors import LehrError, StoreError

LARGEST_TEXT = 16 * 1024**2  # bytes of a configuration, a certificate, a plan: JSON takes twenty times as much memory
LARGEST_TENSORS = 256 * 1024**3  # bytes of the weights of a model, or of a checkpoint
_DATABASE = b"SQLite format 3\0"


def write(path: str | os.PathLike[str], text: str, *, overwrite: bool = False) -> None:
    """Put ``text`` at ``path``. Raises ``StoreError``, and leaves what is there, if it cannot or must not."""
    refuse_to_replace(path, overwrite=overwrite)
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Put ``content`` at ``path``, over whatever file is there. A link stays a link: the file it names is replaced."""
    with _store_errors("write", path):
        _replace(_resolved(path), content)


def write_private(path: str | os.PathLike[str], text: str) -> None:
    """Put ``text`` at ``path``, over whatever file or link is there, for its owner alone to read."""
    with _store_errors("write", path):
        _replace(Path(path).parent.resolve() / Path(path).name, text.encode(), mode=0o600)


def refuse_to_replace(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise ``StoreError`` where ``write`` would, before any work is put into what is to be written."""
    with _store_errors("write", path):
        target = _resolved(path)
        if not target.exists():
            return
        if not target.is_file():
            raise StoreError(f"cannot write {path}: it is there already and is not a file")
        if is_database(target):
            raise StoreError(f"cannot write {path}: a budget, a ledger or another database is there; it stays")
        if not overwrite:
            raise StoreError(f"cannot write {path}: it is there already, and is replaced only with --overwrite")


def _resolved(path: str | os.PathLike[str]) -> Path:
    """The path without links. ``resolve`` itself refuses links in a circle only before Python 3.13."""
    target = Path(path).resolve()
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


def read(path: str | os.PathLike[str]) -> str:
    """The text of a UTF-8 file of at most ``LARGEST_TEXT`` bytes. Raises ``StoreError`` where there is none to read."""
    try:
        return read_bytes(path, at_most=LARGEST_TEXT).decode()
    except UnicodeDecodeError as error:
        raise StoreError(f"cannot read {path}: it is not UTF-8 text") from error


def read_bytes(path: str | os.PathLike[str], *, at_most: int) -> bytes:
    """The content of a regular file of at most so many bytes. Raises ``StoreError`` where there is none to read."""
    with opened(path, at_most=at_most) as file:
        content = file.read(at_most + 1)
    if len(content) > at_most:  # it has grown, or it is one that the system makes up as it is read
        raise StoreError(f"cannot read {path}: it has more than {at_most:,} bytes")
    return content


@contextmanager
def opened(path: str | os.PathLike[str], *, at_most: int) -> Iterator[BinaryIO]:
    """A regular file of at most so many bytes, open for reading. Raises ``StoreError`` for everything else."""
    try:
        # Without O_NONBLOCK, opening a pipe waits for somebody to write into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL in it
        raise StoreError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    about = os.fstat(descriptor)
    if not S_ISREG(about.st_mode) or about.st_size > at_most:
        os.close(descriptor)
        reason = f"it has more than {at_most:,} bytes" if S_ISREG(about.st_mode) else "it is not a regular file"
        raise StoreError(f"cannot read {path}: {reason}")
    with open(descriptor, "rb") as file:
        try:
            yield file
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error


def is_database(path: str | os.PathLike[str]) -> bool:
    """Whether the file begins as every SQLite database does."""
    with _store_errors("read", path), open(path, "rb") as file:
        return file.read(len(_DATABASE)) == _DATABASE


@contextmanager
def _store_errors(verb: str, path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {verb} {path}: {error.strerror}") from error
    except RuntimeError as error:  # a loop of links, before Python 3.13
        raise StoreError(f"cannot {verb} {path}: {error}") from error


def _replace(target: Path, content: bytes, *, mode: int = 0o666) -> None:
    temporary = target.parent / f".{secrets.token_hex(8)}.part"
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(target.parent)


def flush_folder(folder: str | os.PathLike[str]) -> None:
    """Make sure that the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def take_lock(path: Path, *, for_what: str) -> int:
    """The open, locked file; closing it gives the lock back. ``StoreError`` where another process has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        reason = "another process has it" if isinstance(error, BlockingIOError) else error.strerror
        raise StoreError(f"cannot use {for_what}: {reason}") from error
    return descriptor


@contextmanager
def locked(path: Path, *, for_what: str) -> Iterator[None]:
    """Hold a lock meanwhile."""
    descriptor = take_lock(path, for_what=for_what)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(directory: Path, *, locked_by: str | None = None) -> Iterator[Path]:
    """The hidden folder to fill; at the end it becomes ``directory``, which must not exist or be empty.

    ``locked_by`` is a file in it, in a folder for its owner alone, that is locked meanwhile: another process that makes
    the same folder is refused.
    """
    place = Path(os.path.realpath(directory))  # a link stays a link
    hidden = _hidden(place)
    missing = [folder for folder in place.parents if not folder.exists()]
    try:
        with ExitStack() as lock, ExitStack() as on_failure:
            on_failure.callback(_remove_empty, missing)
            place.parent.mkdir(parents=True, exist_ok=True)
            _remove_left_over(place, locked_by)
            hidden.mkdir()
            on_failure.callback(shutil.rmtree, hidden, ignore_errors=True)
            if locked_by is not None:
                (hidden / locked_by).parent.mkdir(mode=0o700, exist_ok=True)
                lock.enter_context(locked(hidden / locked_by, for_what=str(directory)))
            yield hidden
            for folder in (hidden, *filter(Path.is_dir, hidden.rglob("*"))):
                flush_folder(folder)
            hidden.rename(place)
            on_failure.pop_all()
            lock.close()
            flush_folder(place.parent)
    except OSError as error:
        raise StoreError(f"cannot use {directory}: {error.strerror}") from error


def remove_folder(directory: Path, *, locked_by: str) -> None:
    """Remove a folder in one step: one that has lost some of its files could neither be used nor made anew."""
    place = Path(os.path.realpath(directory))
    with _store_errors("remove", directory):
        _remove_left_over(place, locked_by)
        shutil.rmtree(place.rename(_hidden(place)))


@contextmanager
def remove_if_refused(directory: Path, *, locked_by: str) -> Iterator[None]:
    """Remove a new folder where what comes after it is refused: nothing began. What fails otherwise may have begun."""
    try:
        yield
    except LehrError as error:
        if not isinstance(error, StoreError):
            remove_folder(directory, locked_by=locked_by)
        raise


def _remove_left_over(place: Path, locked_by: str | None) -> None:
    """Remove what a killed process left of a folder that it made or removed; refused while a process is at it."""
    hidden = _hidden(place)
    if locked_by is not None and (hidden / locked_by).parent.is_dir():
        os.close(take_lock(hidden / locked_by, for_what=str(place)))
    if hidden.exists():
        shutil.rmtree(hidden)


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _hidden(place: Path) -> Path:
    return place.with_name(f".{place.name}.part")
