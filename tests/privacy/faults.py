"""Does harm at every file operation and SQL statement of a run, and looks whether anything is lost by it.

    python -m tests.privacy.faults 1000          # so many faults, spread over all kinds and places
    python -m tests.privacy.faults 50 training   # of one story

A story is what a user does: it is told in a forked process that is killed, interrupted, or meets a full disk at the
n-th operation below its folder. Then it is told again, undisturbed, as the user would: what had begun is resumed. No
fault may end in a traceback or a hang; no ledger and no budget may show less than was released at any time; and in the
end everything is as if nothing had happened, to the bit where the loop is Lehr's own.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import math
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

KILL, INTERRUPT, FULL, FULL_ONCE = FAULTS = ("kill", "interrupt", "full", "full once")
GROWING = ("create", "mkdir", "write", "fsync", "sql that writes", "sql that has written")  # what a full disk refuses
WRITING_SQL = ("COMMIT", "CREATE", "INSERT")
PATIENCE_S = 120
Check = Callable[[Path, int], None]


class Injector:
    """Counts the operations below a folder, and does harm at the one that is asked for."""

    def __init__(self, root: Path, *, at: int = 0, fault: str = KILL) -> None:
        self.root, self.at, self.fault, self.count = os.path.realpath(root), at, fault, 0
        self._open, self._readlink = os.open, os.readlink

    def point(self, kind: str, path: Any) -> None:
        """An operation of this kind is about to happen."""
        if not os.path.realpath(path).startswith(self.root):
            return
        self.count += 1
        is_full = self.fault in (FULL, FULL_ONCE)
        is_now = self.count == self.at or (0 < self.at < self.count and self.fault == FULL)
        if not is_now or (is_full and kind not in GROWING):
            return
        if self.fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == INTERRUPT:
            raise KeyboardInterrupt
        if kind.startswith("sql"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def install(self) -> None:
        """Put the points in place, for the rest of this process."""
        for name in ("mkdir", "rename", "replace", "rmdir", "unlink"):
            self._wrap(name, lambda path, folder: path if folder is None else f"{self._path_of(folder)}/{path}")
        for name in ("fsync", "write"):
            self._wrap(name, lambda descriptor, _: self._path_of(descriptor))

        def opened(path: Any, flags: int, *given: Any, **named: Any) -> int:
            if flags & os.O_CREAT:
                self.point("create", path)
            return self._open(path, flags, *given, **named)

        os.open = opened
        builtins.open = io.open = self._opened
        self._wrap_sqlite()

    def _wrap(self, name: str, path_of: Callable[[Any, int | None], object]) -> None:
        wrapped = getattr(os, name)

        def call(first: Any, *given: Any, **named: Any) -> Any:
            self.point(name, path_of(first, named.get("dir_fd")))
            return wrapped(first, *given, **named)

        setattr(os, name, call)

    def _path_of(self, descriptor: int) -> str:
        return self._readlink(f"/proc/self/fd/{descriptor}")

    def _opened(self, file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        path = self._path_of(file) if isinstance(file, int) else file
        if writes and not isinstance(file, int):
            self.point("create", path)
        opened = _open(file, mode, *given, **named)
        return _Written(opened, self, path) if writes else opened

    def _wrap_sqlite(self) -> None:
        injector = self

        class Connection(sqlite3.Connection):
            path = "/"

            def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:
                writes = sql.startswith(WRITING_SQL)
                injector.point("sql that writes" if writes else "sql", self.path)
                found = super().execute(sql, *given)
                if writes:  # an error may also come when all is on the disk
                    injector.point("sql that has written", self.path)
                return found

            def executemany(self, sql: str, *given: Any) -> sqlite3.Cursor:
                injector.point("sql that writes", self.path)
                return super().executemany(sql, *given)

            def close(self) -> None:
                injector.point("close", self.path)
                super().close()

        def connect(database: str, *given: Any, **named: Any) -> sqlite3.Connection:
            path = database.removeprefix("file://").partition("?")[0]
            injector.point("connect", path)
            connection: Connection = connected(database, *given, **{"factory": Connection, **named})
            connection.path = path
            return connection

        connected: Any = sqlite3.connect
        sqlite3.connect = connect  # type: ignore[assignment]


_open = io.open


class _Written:
    """A file that is open for writing, and may be cut off in the middle of what is written."""

    def __init__(self, file: Any, injector: Injector, path: object) -> None:
        self._file, self._injector, self._path = file, injector, path

    def write(self, content: Any) -> int:
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            self._injector.point("write", self._path)
            self._file.write(part)
            self._file.flush()
        return len(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Written:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is told, in the folder that is the current one; what holds at any time; and what is left at the end."""

    tell: Callable[[], None]
    holds: Check  # given the folder and how many steps were released so far
    ends: Check
    weight: int = 1  # how much of all faults is for it
    leaves: tuple[str, ...] = ()  # files that are the same to the bit, however often it was disturbed


class Teller:
    """Tells a story in forks, and notes which steps were released in them."""

    def __init__(self, story: Story, root: Path) -> None:
        self.story, self.root = story, root
        self._log = root / "released.log"
        importlib.import_module("lehr.run.mechanism")  # once, and not in every fork

    def disturbed(self, number: int, *, at: int, fault: str) -> str:
        """What went wrong, if anything did: nothing should."""
        folder = self.new_folder(str(number))
        ended, _ = self.told(folder, at=at, fault=fault)
        found = self.said_of(ended, expected=("done", "killed", "KeyboardInterrupt", "StoreError"))
        found = found or self._checked(self.story.holds, folder)
        if not found:
            ended, _ = self.told(folder)
            found = self.said_of(ended, expected=("done",)) or self._checked(self.story.ends, folder)
            found = found or self._differing(folder)
        shutil.rmtree(folder)
        return f"{fault} at {at}: {found}" if found else ""

    def new_folder(self, name: str) -> Path:
        """A folder with a budget."""
        folder = self.root / name
        folder.mkdir()
        shutil.copy(self.root / "budget", folder / "budget")
        self._log.write_text("")
        return folder

    def told(self, folder: Path, *, at: int = 0, fault: str = KILL) -> tuple[str, int]:
        """How a fork ended that told it, and after how many operations."""
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            os.close(reading)
            self._tell(folder, writing, Injector(folder, at=at, fault=fault))
        os.close(writing)
        with os.fdopen(reading) as answer:
            said = answer.read()
        _, status = os.waitpid(process, 0)
        if os.WIFSIGNALED(status):
            return "killed" if os.WTERMSIG(status) == signal.SIGKILL else f"signal {os.WTERMSIG(status)}", 0
        ended, count = json.loads(said)
        return ended, count

    def _tell(self, folder: Path, writing: int, injector: Injector) -> NoReturn:
        from lehr.errors import LehrError

        write, log = os.write, os.open(self._log, os.O_WRONLY | os.O_APPEND)
        signal.alarm(PATIENCE_S)
        os.chdir(folder)
        _note_releases(lambda step, attempt: write(log, f"{step} {attempt}\n".encode()))
        injector.install()
        try:
            self.story.tell()
            ended = "done"
        except (LehrError, KeyboardInterrupt) as error:
            ended = type(error).__name__
            if injector.at == 0:
                ended += f": {error}"
        except BaseException:
            ended = traceback.format_exc()
        write(writing, json.dumps([ended, injector.count]).encode())
        os._exit(0)

    @staticmethod
    def said_of(ended: str, *, expected: tuple[str, ...]) -> str:
        return "" if ended in expected else f"ended by {ended}"

    def _checked(self, check: Check, folder: Path) -> str:
        released = len(set(self._log.read_text().splitlines()))  # the same step of the same attempt is the same value
        try:
            check(folder, released)
        except Exception:
            return f"{check.__name__} with {released} steps released: {traceback.format_exc()}"
        return ""

    def _differing(self, folder: Path) -> str:
        return ", ".join(
            f"{name} differs"
            for name in self.story.leaves
            if (folder / name).read_bytes() != (self.root / "undisturbed" / name).read_bytes()
        )


def _note_releases(note: Callable[[int, int], Any]) -> None:
    """Have every released sum noted as soon as there is one."""
    from lehr.run.private_run import PrivateStep

    release = PrivateStep.release

    def noted(self: PrivateStep, *given: Any, **named: Any) -> Any:
        released = release(self, *given, **named)
        note(self.randomness.step, self.randomness.attempt)
        return released

    PrivateStep.release = noted  # type: ignore[method-assign]


def places(count: int, operations: int) -> list[tuple[int, str]]:
    """So many faults, spread over the operations and kinds; at most all of them."""
    every = [(at, fault) for at in range(1, operations + 1) for fault in FAULTS]
    stride = next(number for number in range(round(0.618 * len(every)), 0, -1) if math.gcd(number, len(every)) == 1)
    return [every[place * stride % len(every)] for place in range(min(count, len(every)))]


def main(count: int, names: list[str]) -> int:
    """Try so many faults; the number of those that did harm."""
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # neither survives a fork
    from tests.privacy.spending import MEMORY
    from tests.privacy.stories import told_in

    failed = done = 0
    with tempfile.TemporaryDirectory(prefix="lehr-faults-", dir=MEMORY) as folder:
        stories = told_in(Path(folder), names)
        weights = sum(story.weight for story in stories.values())
        for name, story in stories.items():
            teller = Teller(story, Path(folder) / name)
            ended, operations = teller.told(teller.new_folder("undisturbed"))
            assert ended == "done", ended
            for number, (at, fault) in enumerate(places(math.ceil(count * story.weight / weights), operations)):
                found = teller.disturbed(number, at=at, fault=fault)
                done += 1
                if found:
                    failed += 1
                    print(f"{name}, {found}", flush=True)  # noqa: T201
            print(f"{name}: {operations} operations", flush=True)  # noqa: T201
    print(f"{done} faults, {failed} did harm")  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), sys.argv[2:])))
