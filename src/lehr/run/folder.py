"""The folder of a run: made once, locked while somebody trains in it, and able to go on after any crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from lehr.accounting.events import NOTHING, Adjacency, Event
from lehr.accounting.ledger import Ledger
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.privacy.rng import RunKey
from lehr.run.shape import Evaluation, RunFiles, config_from_json

Fingerprint = Callable[[RunKey], str]
_LOCK = str(RunFiles(Path()).lock)


class RunFolder:
    """An open run folder, to be closed: it holds a lock, and the ledger."""

    def __init__(self, files: RunFiles, *, lock: int, key: RunKey, ledger: Ledger, config: Mapping[str, Any]) -> None:
        self.files, self.key, self.ledger, self.config = files, key, ledger, config
        self._lock: int | None = lock
        self._made_for_it: list[Path] = []  # the folders above it, where this process has created it

    @classmethod
    def create(
        cls,
        directory: Path,
        *,
        config: Mapping[str, Any],
        key: RunKey,
        plan_event: Event,
        delta: float,
        adjacency: Adjacency,
        fingerprint: Fingerprint,
    ) -> Self:
        """Make the folder of a new run. It appears whole: a process that is killed before leaves none."""
        refuse_used(directory)
        made_for_it = [parent for parent in directory.parents if not parent.exists()]
        with atomic.new_folder(directory, locked_by=_LOCK) as beside:
            files = RunFiles(beside)
            with _failing_by_name(directory):
                files.checkpoints.mkdir()
            _write_private(files.private / ".gitignore", "*\n")  # a run may lie in somebody's repository
            key.save(files.key)
            _write_private(files.fingerprint, fingerprint(key))
            run = str(config["run"])
            Ledger.create(files.ledger, run=run, plan_event=plan_event, delta=delta, adjacency=adjacency).close()
            strict_json.write(files.config, config)
        folder = cls.open(directory)
        folder._made_for_it = made_for_it
        return folder

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the folder of a run that began before."""
        files = RunFiles(directory)
        config = read_config(directory)
        if not files.key.exists():
            raise StoreError(f"the run in {directory} cannot go on: its key is gone, as it is after a release")
        # How a key makes noise on a GPU is as much a part of the run as the key itself.
        on_gpu = bool(config.get("training", {}).get("cryptographic_on_gpu"))
        lock = atomic.take_lock(files.lock, for_what=f"the run in {directory}")
        try:
            key = RunKey.load(files.key, cryptographic_on_gpu=on_gpu)
            return cls(files, lock=lock, key=key, ledger=Ledger.open(files.ledger), config=config)
        except BaseException:
            os.close(lock)
            raise

    @property
    def run_id(self) -> str:
        """What tells this run from every other, of the same name too. It is public: nobody learns the key from it."""
        return self.key.fingerprint(b"run")

    def close(self) -> None:
        """Let others have it. Closing twice does no harm."""
        self.ledger.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def remove(self) -> None:
        """Close a run that never charged anything, and take away what was made for it; what others put there stays."""
        charged = self.ledger.charged()
        if charged != NOTHING:
            raise InvalidValue("run", allowed="one that has charged nothing, to be removed", given=str(charged))
        self.ledger.close()
        files = self.files
        ours = (files.config, files.ledger, files.attempts, files.fingerprint, files.key, files.private / ".gitignore")
        folders = (files.private, files.checkpoints, files.directory)
        if {*files.directory.rglob("*")} <= {*ours, *folders, files.lock}:
            atomic.remove_folder(files.directory, locked_by=_LOCK)
        else:
            with _failing_by_name(files.directory):
                for path in (*ours, files.lock):
                    path.unlink(missing_ok=True)
                for folder in folders:
                    if not any(folder.iterdir()):
                        folder.rmdir()
        with suppress(OSError):  # others have put something there
            for folder in self._made_for_it:
                folder.rmdir()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refuse_other(self, *, config: Mapping[str, Any], fingerprint: Fingerprint) -> None:
        """Refuse to go on with another model, plan, method or data than the run began with."""
        differing = differences(self.config, config)
        if differing:
            raise InvalidValue("run", allowed=f"resumed as it began ({self.files.config})", given="; ".join(differing))
        if atomic.read(self.files.fingerprint) != fingerprint(self.key):
            raise InvalidValue("data", allowed="the very records that the run began with", given="other records")

    def evaluations(self) -> tuple[Evaluation, ...]:
        """The rows of metrics so far."""
        return tuple(Evaluation.from_json(shape) for shape in strict_json.read_lines(self.files.metrics))

    def forget_evaluations_after(self, step: int) -> None:
        """Drop the rows of steps that will be taken again."""
        kept = [row.to_json() for row in self.evaluations() if row.step <= step]
        strict_json.rewrite_lines(self.files.metrics, kept)


def default_directory(name: str) -> Path:
    """A folder below ``runs`` with the time and the run's name. The milliseconds keep runs of one second apart."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    return Path("runs") / f"{moment}-{name.replace(' ', '-').replace('/', '-')}"


def refuse_used(directory: Path) -> None:
    """Refuse a folder that has something in it."""
    with _failing_by_name(directory):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            way_out = "resume that run" if RunFiles(directory).config.exists() else "remove it, for no run began there"
            raise StoreError(f"{directory} is there already and not empty: {way_out}, or name another folder")


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run."""
    files = RunFiles(directory)
    if not files.config.exists():
        raise StoreError(f"{directory} has no run that began: {files.config.name} is missing")
    return strict_json.read(files.config, config_from_json)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """What differs between two configurations, by its path.

    When and by which version is not looked at, nor are claims: they follow from the rest, and are counted anew.
    """
    found = []
    for name in sorted({*before, *now} - ({"claims", "created_on", "library_version"} if not path else set())):
        old, new, where = before.get(name), now.get(name), f"{path}{name}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += differences(old, new, f"{where}.")
        elif old != new:
            found.append(f"{where} was {old!r} and is {new!r}")
    return found


def _write_private(path: Path, text: str) -> None:
    with _failing_by_name(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)


@contextmanager
def _failing_by_name(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror}") from error
