"""The runs below a folder, each in a line: how far it is, what it spends, how good it is. Made to be asked often.

Of each run two small files are read, and again only when they have changed; ledgers, weights and ``private/`` are never
opened. Links are not followed, so that nothing outside of the folder is listed, and a folder that claims to be a run
and cannot be understood is listed as broken.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lehr.errors import InvalidValue, LehrError, StoreError
from lehr.files import json_file, strict_json
from lehr.planning.plan import Plan
from lehr.reports import run_claims
from lehr.reports.rounding import at_most
from lehr.reports.run_reading import State, config_from_json
from lehr.run_shape import PRIVATE, RunFiles

DEEPEST = 3  # folders below the one that is listed; those of a search lie two below
LIVELY_SECONDS = 60.0  # a run that wrote something this lately is called training
LARGEST_BYTES = 32 * 2**20  # of a file that is read; ours are a thousandth of it
TAIL_BYTES = 2**16  # of the rows of metrics; the last one is looked for in these
NOTHING = "–"
COLUMNS = {
    "name": "Run",
    "state": "State",
    "method": "Method",
    "data": "Data",
    "epsilon": "ε, proven",
    "accuracy": "Accuracy",
    "steps": "Steps",
    "started": "Begun",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A run in words. ``key`` names it to a browser: no path is ever taken from there."""

    key: str
    kind: str  # "training", "open", "finished", "stopped" or "broken"
    name: str
    state: str
    method: str = NOTHING
    data: str = NOTHING
    epsilon: str = NOTHING
    accuracy: str = NOTHING
    steps: str = NOTHING
    started: str = NOTHING

    def to_json(self) -> dict[str, str]:
        """Every field, by its name."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """The folder of a run, and what its files looked like."""

    directory: Path
    name: str
    signature: tuple[tuple[int, ...] | None, ...]
    trouble: str  # why it is not read
    begun_at: float
    written_at: float


class RunList:
    """The runs below one folder. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(
                f"cannot list the runs in {folder}: there is no such folder; name the one that they are in"
            )
        self.folder = folder.absolute()
        self._known: dict[str, tuple[_Found, Listed]] = {}
        self._turn = threading.Lock()

    def listed(self) -> list[Listed]:
        """Every run as it is now, the newest first."""
        with self._turn:
            now = time.time()
            found = {_key(found.name): found for found in _runs(self.folder)}
            self._known = {key: (one, self._read(key, one)) for key, one in found.items()}
            ordered = sorted(self._known.values(), key=lambda pair: (-pair[0].begun_at, pair[0].name))
            return [_with_age(listed, found, now=now) for found, listed in ordered]

    def directory(self, key: str) -> Path | None:
        """The folder of a run that is listed, and may be read."""
        if key not in self._known:
            self.listed()
        found, listed = self._known.get(key, (None, None))
        if found is None or listed is None or found.trouble or _seen(found.directory, found.name).trouble:
            return None
        return found.directory

    def _read(self, key: str, found: _Found) -> Listed:
        before, listed = self._known.get(key, (None, None))
        if before is not None and listed is not None and before.signature == found.signature:
            return listed
        return _listed(key, found)


def _runs(folder: Path) -> Iterator[_Found]:
    """Every folder with a configuration in it. What lies below a run belongs to it and is not looked at."""
    name = os.fspath(folder.name) or "."
    if os.path.lexists(RunFiles(folder).config):
        yield _seen(folder, name)
    else:
        yield from _below(folder, "", DEEPEST)


def _below(folder: Path, before: str, depth: int) -> Iterator[_Found]:
    for entry in _folders(folder):
        directory, name = folder / entry, before + entry
        if os.path.lexists(RunFiles(directory).config):
            yield _seen(directory, name)
        elif depth > 1:
            yield from _below(directory, f"{name}/", depth - 1)


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:  # removed meanwhile, or somebody else's
        return []


def _seen(directory: Path, name: str) -> _Found:
    files = RunFiles(directory)
    read = [_look(path) for path in (files.config, files.metrics, files.model, files.certificate, files.audit)]
    journal = files.ledger.with_name(files.ledger.name + "-wal")
    written = [look for look in (read[1], _look(files.ledger), _look(journal)) if look is not None and look.st_size]
    config = read[0]
    return _Found(
        directory=directory,
        name=name,
        signature=tuple(None if one is None else (one.st_mtime_ns, one.st_size, one.st_ino) for one in read),
        trouble=_trouble([*read, _look(files.ledger)]),
        begun_at=0.0 if config is None else config.st_mtime,
        written_at=max((look.st_mtime for look in written), default=0.0),
    )


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _trouble(looks: list[os.stat_result | None]) -> str:
    """A link could lead to any file, and reading a pipe never ends."""
    there = [look for look in looks if look is not None]
    if not all(stat.S_ISREG(look.st_mode) for look in there):
        return "one of its files is a link, or no file"
    if any(look.st_size > LARGEST_BYTES for look in (*looks[:2], *looks[3:5]) if look is not None):
        return "one of its files is far too large"
    return ""


def _key(name: str) -> str:
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:20]


def _listed(key: str, found: _Found) -> Listed:
    name = os.fsencode(found.name).decode(errors="replace")
    if found.trouble:
        return Listed(key=key, kind="broken", name=name, state=f"broken: {found.trouble}")
    try:
        return _understood(key, name, RunFiles(found.directory))
    except LehrError as error:
        return Listed(key=key, kind="broken", name=name, state=f"broken: {without_paths(error, found.directory)}")
    except Exception:  # whatever somebody has written into one folder must not hide all others
        return Listed(key=key, kind="broken", name=name, state="broken: it cannot be understood")


def without_paths(error: LehrError, directory: Path) -> str:
    """An error, less where on this machine the run lies."""
    return str(error).replace(f"{directory}{os.sep}", "").replace(str(directory), directory.name)


def _understood(key: str, name: str, files: RunFiles) -> Listed:
    config = json_file.read(files.config, config_from_json)
    plan = None if config["plan"] is None else Plan.from_json(config["plan"])
    last = _last_row(files.metrics)
    state = _state(plan, last, has_model=files.model.exists())
    return Listed(
        key=key,
        kind={State.GOING_ON: "open", State.STOPPED: "stopped"}.get(state, "finished"),
        name=name,
        state=state.value,
        method=str(config["method"]["name"]),
        data=str(config["data"].get("name", NOTHING)),
        epsilon=_epsilon(config, plan, last, is_over=state is not State.GOING_ON),
        accuracy=_accuracy(last),
        steps=_steps(plan, last),
        started=str(config.get("created_on", NOTHING)),
    )


def _last_row(path: Path) -> Mapping[str, Any]:
    """The last row that was written whole; nothing where there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            whole = file.read().split(b"\n")[:-1]
        row = strict_json.loads(whole[-1].decode()) if whole else {}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, InvalidValue) as error:
        raise StoreError(f"the last row of {path.name} cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise StoreError(f"the last row of {path.name} is no object")
    return row


def _state(plan: Plan | None, last: Mapping[str, Any], *, has_model: bool) -> State:
    """As far as two small files tell; the page of the run looks into its ledger."""
    if not has_model:
        return State.GOING_ON
    if plan is None or not last or _count(last, "step") >= plan.steps:
        return State.COMPLETED
    if plan.limit is not None:
        return State.SPENT
    enough = plan.stops_at_accepted
    return State.STOPPED if enough is None or _count(last, "accepted") < enough else State.ACCEPTED


def _epsilon(config: Mapping[str, Any], plan: Plan | None, last: Mapping[str, Any], *, is_over: bool) -> str:
    """What the whole plan costs, and what is spent of it. One trial of a search promises nothing by itself."""
    declared = config["data"].get("declared", PRIVATE)
    if plan is None or plan.simulates is not None or declared != PRIVATE or not plan.noise_multiplier > 0:
        return "no privacy"
    if config.get("trial_of") is not None:
        return "counted for its search"
    shape = (config.get("claims") or {}).get("proven")
    claim = plan.claim() if shape is None else run_claims.from_json("proven", shape)
    if not claim.is_proven or not math.isfinite(claim.epsilon):
        return "no privacy"
    if is_over:
        return at_most(claim.epsilon)
    spent = _number(last, "epsilon_spent")
    return f"{NOTHING if spent is None else at_most(spent)} of {at_most(claim.epsilon)}"


def _accuracy(last: Mapping[str, Any]) -> str:
    accuracy = _number(last, "accuracy")
    return NOTHING if accuracy is None else f"{accuracy:.2%} on {last.get('on', NOTHING)}"


def _steps(plan: Plan | None, last: Mapping[str, Any]) -> str:
    taken = f"{_count(last, 'step'):,}" if last else NOTHING
    if plan is None:
        return taken
    return f"{taken} of {plan.steps:,}" if plan.limit is None else f"{taken} of at most {plan.steps:,}"


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return value if type(value) is int else 0


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    return value if isinstance(value, float) and math.isfinite(value) else None


def _with_age(listed: Listed, found: _Found, *, now: float) -> Listed:
    """Whether a run that has no model yet still writes."""
    if listed.kind != "open" or not found.written_at:
        return listed
    seconds = now - found.written_at
    if seconds <= LIVELY_SECONDS:
        return replace(listed, kind="training", state="training")
    return replace(listed, state=f"{listed.state}; nothing new for {_duration(seconds)}")


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(1.0, seconds / 60):.0f} min"
