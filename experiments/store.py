"""Where outcomes are stored: a folder with one small JSON file per job, and files that pack the outcomes of a table.

A file's name is the key of its job, and the job in the file must have that key. A failed job leaves a file of its own,
is not an outcome, and is run again next time.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lehr
from experiments.experiment import Job, Outcomes, key_of
from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json

Entry = Mapping[str, Any]
_ABOUT = ("machine", "versions", "commit", "date")


@dataclass(frozen=True)
class Store:
    """A folder of outcomes. It is created when it is first written to."""

    folder: Path

    def has(self, job: Job | str) -> bool:
        """Whether there is an outcome of the job, given as such or by its key."""
        return not isinstance(self._read(job), str | None)

    def entries(self, jobs: Iterable[Job]) -> dict[str, Entry]:
        """The stored outcomes of the jobs, with settings and machine, by key."""
        found = {key_of(job): self._read(job) for job in jobs}
        return {key: entry for key, entry in found.items() if not isinstance(entry, str | None)}

    def outcomes(self, jobs: Iterable[Job]) -> Outcomes:
        """The outcomes of those jobs that were run."""
        return Outcomes({key: entry["result"] for key, entry in self.entries(jobs).items()})

    def damaged(self, jobs: Iterable[Job]) -> list[str]:
        """What is wrong with files that cannot be read. Their jobs are run again."""
        found = {key_of(job): self._read(job) for job in jobs}
        return [error for error in found.values() if isinstance(error, str)]

    def failures(self, jobs: Iterable[Job]) -> dict[str, str]:
        """The errors of jobs that failed when they were last run, by key."""
        keys = [key for key in map(key_of, jobs) if self._path(key, failed=True).exists() and not self.has(key)]
        return {key: self._error(key) for key in keys}

    def keep(self, job: Job, result: Mapping[str, Any], *, about: Mapping[str, Any]) -> None:
        """Write an outcome; a failure of the same job is removed."""
        self.fill({key_of(job): {"job": job.to_json(), "result": dict(result), **about}})

    def keep_failure(self, job: Job, error: str, *, about: Mapping[str, Any]) -> None:
        """Write that a job failed."""
        self._create()
        shape = {"job": job.to_json(), "error": error, **about}
        strict_json.write(self._path(key_of(job), failed=True), shape, overwrite=True)

    def fill(self, entries: Mapping[str, Entry]) -> None:
        """Take over outcomes; they replace others of the same jobs."""
        for key, entry in entries.items():
            self._create()
            strict_json.write(self._path(key), dict(_check_entry(dict(entry), key=key)), overwrite=True)
            self._path(key, failed=True).unlink(missing_ok=True)

    def _read(self, job: Job | str) -> Entry | str | None:
        """The entry of a job, an error if its file cannot be read, or None if there is no file."""
        key = job if isinstance(job, str) else key_of(job)
        try:
            path = self._path(key)
            return strict_json.read(path, lambda shape: _check_entry(shape, key=key)) if path.exists() else None
        except StoreError as error:
            return str(error)

    def _error(self, key: str) -> str:
        """Why a job failed; a damaged note of a failure is still a failure."""
        try:
            failure = strict_json.read(self._path(key, failed=True), _check_failure)
        except StoreError as error:
            return str(error)
        return str(failure["error"])

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use {self.folder}: {error.strerror}") from error

    def _path(self, key: str, *, failed: bool = False) -> Path:
        return self.folder / f"{key}{'.failed' if failed else ''}.json"


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """The outcomes of one table in one file, for a repository. Those of quick versions are kept apart."""

    what: str
    paper: str
    name: str
    entries: Mapping[str, Entry]
    is_quick: bool = False

    def merged(self, other: ResultFile) -> ResultFile:
        """With the outcomes of another file of the same table, which take precedence."""
        for name in ("paper", "name", "is_quick"):
            if getattr(self, name) != getattr(other, name):
                allowed = f"{getattr(self, name)!r}, as in the file that is there"
                raise InvalidValue(name, allowed=allowed, given=getattr(other, name))
        return replace(other, entries={**self.entries, **other.entries})

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a file with one outcome per line, so that differences are readable."""
        about = [f"{_line(name)}: {_line(getattr(self, name))}" for name in ("what", "paper", "name")]
        about += ['"is_quick": true'] if self.is_quick else []
        entries = ",\n".join(f"{_line(key)}: {_line(dict(self.entries[key]))}" for key in sorted(self.entries))
        atomic.write(path, "{" + ",\n".join([*about, '"entries": {\n' + entries]) + "\n}}\n", overwrite=overwrite)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ResultFile:
        """Read a file; an outcome under the key of another job is refused."""
        return strict_json.read(path, cls.from_json)

    @classmethod
    def from_json(cls, shape: object) -> ResultFile:
        marks = ("is_quick",) if isinstance(shape, dict) and "is_quick" in shape else ()
        given = strict_json.fields("kept file", shape, ("what", "paper", "name", "entries", *marks))
        entries = strict_json.check_table(given["entries"])
        return cls(
            **{name: validate.text(**{name: given[name]}) for name in ("what", "paper", "name")},
            entries={key: _check_entry(entry, key=key) for key, entry in entries.items()},
            is_quick=validate.true_or_false(is_quick=given.get("is_quick", False)),
        )


def outcomes_in(*files: ResultFile) -> Outcomes:
    """The outcomes of several files; later files take precedence."""
    return Outcomes({key: entry["result"] for file in files for key, entry in file.entries.items()})


def machine(device: str | None, *, commit: str | None = None) -> dict[str, Any]:
    """The machine, the versions and the date of a run. Without a commit, git is asked, if the source is a checkout."""
    import torch

    on_gpu = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} CPU cores",
        # A plain string: another process that gets a TorchVersion would have to import torch.
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "lehr": lehr.__version__},
        "commit": commit or _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _commit() -> str | None:
    folder = Path(__file__).parents[1]
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip() or None


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _check_entry(shape: object, *, key: str) -> Entry:
    entry = strict_json.fields("entry", shape, ("job", "result", *_ABOUT))
    expected = key_of(strict_json.check_table(entry["job"]))
    if expected != key:
        raise InvalidValue("key", allowed=f"{expected}, the key of its job", given=key)
    strict_json.check_table(entry["result"])
    return entry


def _check_failure(shape: object) -> Entry:
    failure = strict_json.fields("failure", shape, ("job", "error", *_ABOUT))
    validate.text(error=failure["error"])
    return failure
