"""The folder of a run: created atomically, locked while it is open, and resumable after any crash."""

from __future__ import annotations

import os
import secrets
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
    """An open run folder, with its lock and its ledger. Close it, or use ``with``."""

    def __init__(self, files: RunFiles, *, lock: int, key: RunKey, ledger: Ledger, config: Mapping[str, Any]) -> None:
        self.files, self.key, self.ledger, self.config = files, key, ledger, config
        self._lock: int | None = lock
        self._created_parents: list[Path] = []  # missing parents that were created for it

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
        """Create the folder of a new run. It appears complete, or not at all if the process is killed."""
        refuse_used(directory)
        created_parents = [parent for parent in directory.parents if not parent.exists()]
        with atomic.new_folder(directory, locked_by=_LOCK) as beside:
            files = RunFiles(beside)
            with _failing_by_name(directory):
                files.checkpoints.mkdir()
            _write_private(files.private / ".gitignore", "*\n")  # the run may be inside a repository
            key.save(files.key)
            _write_private(files.fingerprint, fingerprint(key))
            run = str(config["run"])
            Ledger.create(files.ledger, run=run, plan_event=plan_event, delta=delta, adjacency=adjacency).close()
            strict_json.write(files.config, config)
        folder = cls.open(directory)
        folder._created_parents = created_parents
        return folder

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Open the folder of an existing run."""
        files = RunFiles(directory)
        config = read_config(directory)
        if not files.key.exists():
            raise StoreError(f"the run in {directory} cannot be resumed: its key is gone, as after a release")
        lock = atomic.take_lock(files.lock, for_what=f"the run in {directory}")
        try:
            key = RunKey.load(files.key)
            return cls(files, lock=lock, key=key, ledger=Ledger.open(files.ledger), config=config)
        except BaseException:
            os.close(lock)
            raise

    @property
    def run_id(self) -> str:
        """A public identifier of the run, which does not reveal the key."""
        return self.key.fingerprint(b"run")

    def close(self) -> None:
        """Close the ledger and release the lock. Can be called twice."""
        self.ledger.close()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def remove(self) -> None:
        """Delete a run that has charged nothing, and close it. Files of others stay."""
        charged = self.ledger.charged()
        if charged != NOTHING:
            raise InvalidValue("run", allowed="one that has charged nothing", given=str(charged))
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
        with suppress(OSError):  # they contain something else by now
            for folder in self._created_parents:
                folder.rmdir()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check_same(self, *, config: Mapping[str, Any], fingerprint: Fingerprint) -> None:
        """Raise an error if the model, plan, method or data differ from those of the run."""
        differing = differences(self.config, config)
        if differing:
            raise InvalidValue(
                "run", allowed=f"resumed with the settings in {self.files.config}", given="; ".join(differing)
            )
        if atomic.read(self.files.fingerprint) != fingerprint(self.key):
            raise InvalidValue("data", allowed="the same records as at the start of the run", given="other records")

    def evaluations(self) -> tuple[Evaluation, ...]:
        """The rows of metrics so far."""
        return tuple(Evaluation.from_json(shape) for shape in strict_json.read_lines(self.files.metrics))

    def forget_evaluations_after(self, step: int) -> None:
        """Delete the rows of steps that will be repeated."""
        kept = [row.to_json() for row in self.evaluations() if row.step <= step]
        strict_json.rewrite_lines(self.files.metrics, kept)


def default_directory(name: str) -> Path:
    """A new folder below ``runs``, named after the time and the run. Runs that start at once have different ones."""
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{moment}-{secrets.token_hex(3)}-{name.replace(' ', '-').replace('/', '-')}"


def refuse_used(directory: Path) -> None:
    """Raise an error if the folder is not empty."""
    with _failing_by_name(directory):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            way_out = "resume that run" if RunFiles(directory).config.exists() else "remove it, since it has no run"
            raise StoreError(f"{directory} exists and is not empty: {way_out}, or choose another folder")


def read_config(directory: Path) -> dict[str, Any]:
    """The content of a run's config.json."""
    files = RunFiles(directory)
    if not files.config.exists():
        raise StoreError(f"{directory} is not the folder of a run: {files.config.name} is missing")
    return strict_json.read(files.config, config_from_json)


def differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> list[str]:
    """The differences between two configurations, by path.

    Dates, versions and claims are not compared; claims follow from the rest.
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
