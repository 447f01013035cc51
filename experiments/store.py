"""Where outcomes are kept: a folder with one small JSON file for each job, and files in which many are kept together.

A file's name is the key of its job, so that whoever runs a table again finds what is there. What a file says it is the
outcome of must have that key. A job that failed leaves a file of its own, is run again next time, and is no outcome.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lehr
from experiments.experiment import Job, Outcomes, key_of, key_of_words
from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic, strict_json

Entry = Mapping[str, Any]
_ENTRY = ("job", "result", "machine", "versions", "commit", "date")
_FAILURE = ("job", "error", "machine", "versions", "commit", "date")
_KEPT = ("what", "paper", "name", "entries")
_QUICK = "is_quick"
_FAILED = ".failed"


@dataclass(frozen=True)
class Store:
    """A folder of outcomes. It is made where it is first written to."""

    folder: Path

    def has(self, job: Job) -> bool:
        """Whether the job was run and gave something."""
        return self.has_key(key_of(job))

    def has_key(self, key: str) -> bool:
        """The same, by the job's key. A file that cannot be read is no outcome: its job is run again."""
        return self._of(key).exists() and self._damage(key) is None

    def entry(self, key: str) -> Entry:
        """What is kept of a job, by its key."""
        return strict_json.read(self._of(key), lambda shape: _an_entry(shape, key=key))

    def outcomes(self, jobs: Collection[Job]) -> Outcomes:
        """What those of the jobs gave that were run."""
        keys = [key_of(job) for job in jobs if self.has(job)]
        return Outcomes({key: self.entry(key)["result"] for key in keys})

    def damaged(self, jobs: Collection[Job]) -> list[str]:
        """What is wrong with the files of those jobs that have one, and no outcome in it."""
        keys = dict.fromkeys(key_of(job) for job in jobs)
        return [why for key in keys if self._of(key).exists() and (why := self._damage(key)) is not None]

    def failures(self, jobs: Collection[Job]) -> dict[str, str]:
        """Why those failed that failed when they were last run, by their keys."""
        keys = [key for job in jobs if (key := key_of(job)) and not self.has(job) and self._of(key, _FAILED).exists()]
        return {key: self._error(key) for key in keys}

    def keep(self, job: Job, result: Mapping[str, Any], *, about: Mapping[str, Any]) -> None:
        """Write down an outcome; a failure of the same job is forgotten."""
        self.fill({key_of(job): {"job": job.to_json(), "result": dict(result), **about}})

    def keep_failure(self, job: Job, error: str, *, about: Mapping[str, Any]) -> None:
        """Write down that a job failed."""
        self._made()
        words = {"job": job.to_json(), "error": error, **about}
        strict_json.write(self._of(key_of(job), _FAILED), words, overwrite=True)

    def fill(self, entries: Mapping[str, Entry]) -> None:
        """Take over outcomes, over others of the same jobs."""
        self._made()
        for key, entry in entries.items():
            strict_json.write(self._of(key), dict(_an_entry(dict(entry), key=key)), overwrite=True)
            self._of(key, _FAILED).unlink(missing_ok=True)

    def _damage(self, key: str) -> str | None:
        try:
            self.entry(key)
        except StoreError as error:
            return str(error)
        return None

    def _error(self, key: str) -> str:
        """Why a job failed; of a note that is damaged, that: the job is run again either way."""
        try:
            words: str = strict_json.read(self._of(key, _FAILED), _a_failure)["error"]
        except StoreError as error:
            return str(error)
        return words

    def _made(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot use {self.folder}: {error.strerror}") from error

    def _of(self, key: str, ending: str = "") -> Path:
        return self.folder / f"{key}{ending}.json"


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """Outcomes of one table in one file, as a repository keeps them. Those of quick versions are kept apart."""

    what: str
    paper: str
    name: str
    entries: Mapping[str, Entry]
    is_quick: bool = False

    def joined(self, other: ResultFile) -> ResultFile:
        """With those of another file of the same table, which win."""
        for name in ("paper", "name", _QUICK):
            if getattr(self, name) != getattr(other, name):
                allowed = f"{getattr(self, name)!r}, as in the file that is there"
                raise InvalidValue(f"{name} of what is kept", allowed=allowed, given=getattr(other, name))
        return replace(other, entries={**self.entries, **other.entries})

    def write(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Put it into a file, an outcome a line: such files are small, and what changed in one can be seen."""
        about = [f"{_line(name)}: {_line(getattr(self, name))}" for name in ("what", "paper", "name")]
        entries = ",\n".join(f"{_line(key)}: {_line(dict(self.entries[key]))}" for key in sorted(self.entries))
        about += [f"{_line(_QUICK)}: true"] if self.is_quick else []
        text = "{" + ",\n".join([*about, '"entries": {\n' + entries]) + "\n}}\n"
        atomic.write(path, text, overwrite=overwrite)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ResultFile:
        """What is in a file; refused where an outcome is not that of the job that it stands for."""
        return strict_json.read(path, cls.from_json)

    @classmethod
    def from_json(cls, shape: object) -> ResultFile:
        """The same from its JSON form."""
        is_marked = isinstance(shape, dict) and _QUICK in shape
        said = strict_json.fields("kept file", shape, (*_KEPT, _QUICK) if is_marked else _KEPT)
        is_quick = validate.true_or_false(is_quick=said.get(_QUICK, False))
        entries = strict_json.check_table(said["entries"])
        words = {name: validate.text(**{name: said[name]}) for name in ("what", "paper", "name")}
        checked = {key: _an_entry(entry, key=key) for key, entry in entries.items()}
        return cls(**words, entries=checked, is_quick=is_quick)


def outcomes_in(*kept: ResultFile) -> Outcomes:
    """The outcomes of several files; those of the last win."""
    return Outcomes({key: entry["result"] for each in kept for key, entry in each.entries.items()})


def machine(device: str | None, *, commit: str | None = None) -> dict[str, Any]:
    """Where, with what and when a job is run. Without a commit, git is asked, where the source is under it."""
    import torch

    on_gpu = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
    return {
        "machine": torch.cuda.get_device_name() if on_gpu else f"{os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "lehr": lehr.__version__},
        "commit": commit or _commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _commit() -> str | None:
    """The commit of the source; nothing where it is no checkout."""
    folder = Path(__file__).parents[1]
    if not (folder / ".git").exists():
        return None
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _an_entry(shape: object, *, key: str) -> Entry:
    entry = strict_json.fields("entry", shape, _ENTRY)
    words = strict_json.check_table(entry["job"])
    if key_of_words(words) != key:
        raise InvalidValue("key", allowed=f"{key_of_words(words)}, which is that of its job", given=key)
    strict_json.check_table(entry["result"])
    return entry


def _a_failure(shape: object) -> dict[str, Any]:
    failure = strict_json.fields("failure", shape, _FAILURE)
    validate.text(error=failure["error"])
    return failure
