"""SQLite files that rows are added to and never changed in. Ledgers and budgets are such files.

>>> import tempfile
>>> notes = FileFormat(application_id=0x4E6F7465, version=1, name="notebook", journal=Journal.ROLLBACK)
>>> folder = tempfile.TemporaryDirectory()
>>> file = AppendOnlyFile.create(f"{folder.name}/notes.db", notes, kind="opened", body={"by": "Ada"})
>>> file.append("remark", {"text": "the kettle is on"}).seq
2
>>> [row.kind for row in file.rows()]
['opened', 'remark']
>>> file.close()
>>> folder.cleanup()

Guaranteed:

- A row that ``append`` or ``transaction`` returned is on the disk. A killed process leaves the committed rows, whole.
- Every row has a hash over itself and the row before. SQLite triggers refuse changes; changes that bypass them (an
  editor, a faulty disk, a truncated copy) are found when the file is next opened.
- A file of another program, another format, a newer version, or a damaged one is refused without a change to it. The
  one repair is SQLite's own: its journal of a killed process is completed or undone.
- A read-only file can be opened, and refuses rows with a ``StoreError``.

Not guaranteed: the hashes have no key, so they reveal accidents and not a forger. An older copy put in place of the
file looks valid, unless its ``head`` was noted and is passed as ``continuing=``.

The bytes are read through SQLite only: closing another handle on the file would drop this process's SQLite locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from lehr import validate
from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError

LOCK_PATIENCE_S = 30.0
LARGEST_BYTES = 1024**3  # of a file, whose rows are all held in memory: millions of charges


class Journal(Enum):
    """How SQLite makes a commit all or nothing."""

    # Readers never wait and a commit is one write. Its shared memory needs every process to be on one machine.
    WRITE_AHEAD = "wal"
    # For files that several machines reach over a network file system, where that shared memory does not work.
    ROLLBACK = "delete"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFormat:
    """The name of a kind of file, and the numbers in its header that tell it from every other."""

    application_id: int
    version: int
    name: str
    journal: Journal


class Row(NamedTuple):
    """One row: its number from 1, the time in UTC, a word, JSON text, and the hash that ties it to the row before."""

    seq: int
    at: str
    kind: str
    body: str
    chain: str

    def content(self) -> dict[str, object]:
        """The body, parsed."""
        content: dict[str, object] = json.loads(self.body)
        return content

    @property
    def head(self) -> str:
        """Identifies a file that has this row, for ``open(..., continuing=head)``."""
        return f"{self.seq}:{self.chain}"


class Transaction:
    """The rows so far and those to be added. Nobody else writes meanwhile; all are written at its end, or none."""

    def __init__(self, rows: Sequence[Row], seed: str) -> None:
        self.rows, self.added, self._seed = tuple(rows), list[Row](), seed

    def append(self, kind: str, body: Mapping[str, object], *, at: str | None = None) -> Row:
        """Add a row, of this moment unless another is given."""
        seq, previous = (self.rows[-1].seq + 1, self.rows[-1].chain) if self.rows else (1, self._seed)
        # To the minute: how long a step took follows how many records were drawn.
        at = at or datetime.now(UTC).isoformat(timespec="minutes")
        try:
            text = json.dumps(dict(body), sort_keys=True, separators=(",", ":"), allow_nan=False)
        except (TypeError, ValueError) as error:
            allowed = "made of finite numbers, text, lists and mappings"
            raise InvalidValue("body", allowed=allowed, given=body) from error
        chain = _link(previous, seq, at, validate.text(kind=kind), text)
        row = Row(seq=seq, at=at, kind=kind, body=text, chain=chain)
        self.rows, self.added = (*self.rows, row), [*self.added, row]
        return row


class AppendOnlyFile:
    """An open file. Threads may share it; a forked process must open its own."""

    def __init__(self, path: Path, file_format: FileFormat, connection: sqlite3.Connection, rows: list[Row]) -> None:
        self.path = path
        self.file_format = file_format
        self._connection: sqlite3.Connection | None = connection
        self._rows = rows
        self._turn = threading.RLock()
        self._process = os.getpid()
        self._identity = _identity(path)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], file_format: FileFormat, *, kind: str, body: Mapping[str, object]
    ) -> Self:
        """Make the file with its first row. Refused where there is one already, whatever it holds."""
        first = Transaction((), _seed(file_format))
        first.append(kind, body)
        return cls._create_with(Path(path).absolute(), file_format, first.added)

    @classmethod
    def open(cls, path: str | os.PathLike[str], file_format: FileFormat, *, continuing: str | None = None) -> Self:
        """Open a file of this format after reading all of it; ``continuing`` is a ``head`` that it must still have."""
        path = Path(path).absolute()
        _check_regular(path)
        _check_header_unlocked(path, file_format)
        mode = _reading_mode(path, file_format)
        rows = _verified_rows(path, file_format, mode)
        if continuing is not None and continuing not in (row.head for row in rows):
            raise DamagedFile(
                f"{path} does not continue from {continuing}: its {len(rows)} rows end at {rows[-1].head}; "
                "an older or another copy may have been put in its place"
            )
        with _named_errors(path, "opening it"):
            connection = _connect(path, mode if mode == _FROZEN else "mode=rw")
            if mode != _FROZEN:
                # EXTRA also puts the removal of a rollback journal on the disk.
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA fullfsync = ON")
                wanted = file_format.journal.value
                if connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()[0] != wanted:
                    connection.close()
                    raise StoreError(f"{path}: this file system does not support the journal {wanted!r}")
            return cls(path, file_format, connection, rows)

    @classmethod
    def copy_at(
        cls, source: str | os.PathLike[str], target: str | os.PathLike[str], file_format: FileFormat, *, at: str
    ) -> None:
        """Make a new file with the rows of another, all of one moment: it does not tell when each was written."""
        with cls.open(source, file_format) as known:
            rows = known.rows()
        copied = Transaction((), _seed(file_format))
        for row in rows:
            copied.append(row.kind, row.content(), at=at)
        cls._create_with(Path(target).absolute(), file_format, copied.added).close()

    @classmethod
    def _create_with(cls, path: Path, file_format: FileFormat, rows: Sequence[Row]) -> Self:
        taken = StoreError(f"{path} exists already; open it, or choose another name")
        with _named_errors(path, "creating it"):
            if not path.parent.is_dir():
                raise StoreError(f"{path} cannot be created: there is no folder {path.parent}")
            if path.exists() and (not path.is_file() or path.stat().st_size):
                raise taken
            with closing(_connect(path, "mode=rwc")) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                # Another process may have created it meanwhile.
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                    raise taken
                for statement in _SCHEMA.values():
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {file_format.application_id}")
                connection.execute(f"PRAGMA user_version = {file_format.version}")
                connection.executemany(_INSERT, rows)
                connection.execute("COMMIT")
        return cls.open(path, file_format)

    @property
    def head(self) -> str:
        """The number and the hash of the last row: what to note down elsewhere against the return of an old copy."""
        return self.rows()[-1].head

    def rows(self) -> tuple[Row, ...]:
        """Every row that any process has committed so far."""
        with self._turn, _named_errors(self.path, "reading it"):
            self._catch_up(self._usable())
            return tuple(self._rows)

    def append(self, kind: str, body: Mapping[str, object]) -> Row:
        """Add one row; when this returns, it is on the disk."""
        with self.transaction() as transaction:
            return transaction.append(kind, body)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Read, decide and add as one step that no other thread, process or machine comes between."""
        with self._turn, _named_errors(self.path, "adding to it"):
            connection = self._usable()
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._catch_up(connection)
                transaction = Transaction(self._rows, _seed(self.file_format))
                yield transaction
                connection.executemany(_INSERT, transaction.added)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file. Closing twice does no harm."""
        with self._turn:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} has been closed")
        if self._process != os.getpid():
            raise StoreError(f"{self.path} was opened by the process that this one was forked from; open it again here")
        if _identity(self.path) != self._identity:
            raise StoreError(f"{self.path} was moved, removed or replaced while it was open; open it again")
        return self._connection

    def _catch_up(self, connection: sqlite3.Connection) -> None:
        """Read what was added since, beginning with the last row known, which must still be there."""
        last = self._rows[-1]
        found = connection.execute(f"{_SELECT} WHERE seq >= ? ORDER BY seq", (last.seq,)).fetchall()
        if not found or found[0] != last:
            raise DamagedFile(f"{self.path}: row {last.seq} was removed or changed while the file was open")
        self._rows.extend(_chained(found[1:], last.seq, last.chain, self.path))


class FileBacked:
    """An object whose state is the rows of an append-only file, such as a ledger. Making one checks every row."""

    file_format: ClassVar[FileFormat]

    def __init__(self, file: AppendOnlyFile) -> None:
        self._file = file

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, continuing: str | None = None) -> Self:
        """Open an existing file, to go on or to inspect it; ``continuing`` is a ``head`` that it must still have."""
        file = AppendOnlyFile.open(path, cls.file_format, continuing=continuing)
        try:
            return cls(file)
        except BaseException:
            file.close()
            raise

    @property
    def head(self) -> str:
        """What to note down elsewhere: ``open(..., continuing=head)`` then refuses an older copy."""
        return self._file.head

    @property
    def path(self) -> Path:
        return self._file.path

    def close(self) -> None:
        """Let go of the file. Closing twice does no harm."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def row_errors(path: Path, row: Row) -> Iterator[None]:
    """Turn errors in reading a row, and violations of the rules for writing it, into ``DamagedFile``."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError, BudgetExceeded) as error:
        raise DamagedFile(f"{path}: row {row.seq} ({row.kind}) cannot be understood: {error}") from error


def check_name(**named: object) -> str:
    """A checked name: one line of printable text, so that nothing in a list of names can pass for something else."""
    name = validate.text(**named)
    if not name.isprintable():
        raise InvalidValue(next(iter(named)), allowed="one line of printable text", given=name)
    return name


# Neither locks nor journals: the file alone, as it is.
_FROZEN = "mode=ro&immutable=1"
_INSERT = "INSERT INTO entry (seq, at, kind, body, chain) VALUES (?, ?, ?, ?, ?)"
_SELECT = "SELECT seq, at, kind, body, chain FROM entry"
# AUTOINCREMENT makes SQLite remember the highest number ever given, so that rows cut from the end are missed too.
# INSERT OR REPLACE removes a row without asking the trigger on removal, so the trigger on insertion must refuse it.
_SCHEMA = {
    "entry": (
        "CREATE TABLE entry (seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, kind TEXT NOT NULL, "
        "body TEXT NOT NULL, chain TEXT NOT NULL)"
    ),
    "entries_follow_one_another": (
        "CREATE TRIGGER entries_follow_one_another BEFORE INSERT ON entry "
        "WHEN NEW.seq IS NOT (SELECT coalesce(max(seq), 0) + 1 FROM entry) "
        "BEGIN SELECT RAISE(ABORT, 'this file is append-only: a new entry takes the next number'); END"
    ),
    "entries_are_never_changed": (
        "CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entry "
        "BEGIN SELECT RAISE(ABORT, 'this file is append-only: no entry is ever changed'); END"
    ),
    "entries_are_never_removed": (
        "CREATE TRIGGER entries_are_never_removed BEFORE DELETE ON entry "
        "BEGIN SELECT RAISE(ABORT, 'this file is append-only: no entry is ever removed'); END"
    ),
}
_MADE_BY_SQLITE = {"sqlite_sequence": "CREATE TABLE sqlite_sequence(name,seq)"}
# What goes wrong around a file, not in it; every other error of SQLite while reading means that the file is damaged.
_SURROUNDINGS = {
    *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY),
    *(sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL),
    *(sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_MISUSE),
}


def _check_regular(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ForeignFile(f"{path} is {'a folder' if path.is_dir() else 'not a regular file'}")
    if found.st_size > LARGEST_BYTES:
        raise StoreError(f"{path} cannot be opened: it has {found.st_size:,} bytes, more than {LARGEST_BYTES:,}")
    for ending in ("-wal", "-shm", "-journal"):  # SQLite opens them too, and would wait for the writer of a pipe
        other = Path(os.path.realpath(path) + ending)
        if os.path.lexists(other) and not other.is_file():
            raise StoreError(f"{path} cannot be opened: {other.name} next to it is not a regular file")
    if not found.st_size:
        raise ForeignFile(f"{path} is empty; if its creation was interrupted, create it again")


def _check_header_unlocked(path: Path, file_format: FileFormat) -> None:
    """Look at the header without locks or journals, so that another program's file is not touched at all."""
    with _named_errors(path, "reading its header"), closing(_connect(path, _FROZEN)) as connection:
        try:
            _check_header(connection, path, file_format)
        except sqlite3.DatabaseError as error:
            if _code(error) == sqlite3.SQLITE_NOTADB:
                raise ForeignFile(f"{path} is no {file_format.name}: it is not an SQLite file") from error
            # Without locks a commit in progress can look like damage: the reading under locks decides.


def _check_header(connection: sqlite3.Connection, path: Path, file_format: FileFormat) -> None:
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    name = file_format.name
    if application_id != file_format.application_id:
        expected = f"that of a {name} is {file_format.application_id:#010x}"
        raise ForeignFile(f"{path} is no {name}: its application id is {application_id:#010x}, and {expected}")
    if version != file_format.version:
        advice = "upgrade Lehr" if version > file_format.version else "there was never such a format"
        reads = f"this Lehr reads {file_format.version}: {advice}"
        raise ForeignFile(f"{path} is a {name} of format {version}, and {reads}")


def _reading_mode(path: Path, file_format: FileFormat) -> str:
    """How to open the file so that reading it completes or undoes a journal, and otherwise changes nothing."""
    if file_format.journal is Journal.ROLLBACK or _size_of(path, "-journal"):
        return "mode=rw"  # only such a connection can undo a rollback journal, which every file has while it is created
    if not _size_of(path, "-wal"):
        try:
            with closing(_connect(path, "mode=ro")) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            # In a read-only folder SQLite cannot make its shared memory. Without a log, all rows are in the file; one
            # that another process adds meanwhile is whole, or does not pass the checks, like every torn file.
            if _code(error) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}:
                return _FROZEN
        except UnicodeDecodeError:  # damage, which the checks name
            pass
    return "mode=ro"  # closing a connection that may write would move a log into the file, even into a damaged one


def _verified_rows(path: Path, file_format: FileFormat, mode: str) -> list[Row]:
    with _named_errors(path, "checking it"), closing(_connect(path, mode)) as connection:
        connection.execute("BEGIN")
        _check_header(connection, path, file_format)
        report = connection.execute("PRAGMA quick_check").fetchall()
        if report != [("ok",)]:
            raise DamagedFile(f"{path} is damaged: {report[0][0]}")
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        length = path.stat().st_size
        # Pages that are still in a write-ahead log are not yet part of the file's length.
        if length != pages * page_size and not _size_of(path, "-wal"):
            raise DamagedFile(f"{path} has {length} bytes, and its header says {pages} pages of {page_size}")
        schema = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
        if schema != (expected := _SCHEMA | _MADE_BY_SQLITE):
            changed = sorted(name for name in schema.keys() | expected.keys() if schema.get(name) != expected.get(name))
            raise DamagedFile(f"{path}: its tables or triggers were changed: {', '.join(map(str, changed))}")
        found = connection.execute(f"{_SELECT} ORDER BY seq").fetchall()
        highest = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entry'").fetchall()
        if not found or highest != [(len(found),)]:
            raise DamagedFile(f"{path} has {len(found)} rows, and its own count says {highest}: rows are missing")
        return list(_chained(found, 0, _seed(file_format), path))


def _chained(found: list[tuple[object, ...]], seq: int, chain: str, path: Path) -> Iterator[Row]:
    for columns in found:
        seq += 1
        match columns:
            case (int(number), str(at), str(kind), str(body), str(link)) if number == seq:
                if link != (chain := _link(chain, number, at, kind, body)):
                    raise DamagedFile(f"{path}: row {seq} was changed since it was written (its hash does not fit)")
                yield Row(seq=number, at=at, kind=kind, body=body, chain=link)
            case _:
                raise DamagedFile(f"{path}: row {seq} is missing or out of order; found in its place: {columns!r}")


def _link(previous: str, seq: int, at: str, kind: str, body: str) -> str:
    # A JSON list keeps the borders between the parts, so that no text can move from one into the next unseen.
    return hashlib.sha256(json.dumps([previous, seq, at, kind, body]).encode()).hexdigest()


def _seed(file_format: FileFormat) -> str:
    return f"{file_format.name} {file_format.application_id} {file_format.version}"


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{mode}", uri=True, timeout=LOCK_PATIENCE_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA trusted_schema = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _named_errors(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}, while {doing}") from error
    except sqlite3.Error as error:
        code = _code(error)
        if code == sqlite3.SQLITE_BUSY:
            raise StoreError(f"{path} was in use by another process for {LOCK_PATIENCE_S:g} s while {doing}") from error
        if code in _SURROUNDINGS:
            raise StoreError(f"{path}: {error}, while {doing}") from error
        raise DamagedFile(f"{path} is damaged: {error}, while {doing}") from error
    except UnicodeDecodeError as error:  # a name in the file, in a message of SQLite's about it
        raise DamagedFile(f"{path} is damaged: it has text that is not UTF-8, seen while {doing}") from error


def _code(error: sqlite3.Error) -> int | None:
    # Errors that Python's own module raises (text that is not UTF-8) carry no code of SQLite's.
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size_of(path: Path, ending: str) -> int:
    """The bytes of one of SQLite's journals, whose name is that of the file with an ending."""
    try:
        return os.stat(os.path.realpath(path) + ending).st_size  # SQLite follows links before it names its journals
    except FileNotFoundError:
        return 0
