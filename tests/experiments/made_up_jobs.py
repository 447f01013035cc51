"""Small jobs, measurements that need no preset, and their outcomes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from experiments.experiment import Cell, Job, Measurement, Outcomes, Table, Training, key_of, training
from lehr.errors import Diverged

ABOUT: dict[str, Any] = {
    "machine": "2 CPU cores",
    "versions": {"python": "3.11"},
    "commit": None,
    "date": "2026-11-16",
}


def tiny(**changed: Any) -> Training:
    """A few steps on the digits."""
    usual: dict[str, Any] = {
        "data": "digits",
        "network": ("small_cnn", {}),
        "method": "dpsgd",
        "seed": 0,
        "expected_batch_size": 32,
        "steps": 4,
        "noise_multiplier": 1.0,
        "delta": 1e-4,
    }
    return training(**{**usual, **changed})


def shapes_of(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """The JSON forms of jobs that are all training runs."""
    shapes = [job.to_json() for job in jobs]
    assert {each["kind"] for each in shapes} == {"training"}
    return shapes


def outcomes_of(jobs: Iterable[Training], make: Callable[[Training], dict[str, Any]]) -> Outcomes:
    return Outcomes({key_of(job): make(job) for job in jobs})


def cells(table: Table, *starts: Cell) -> dict[str, Any]:
    """The only row that starts so, by the titles of its columns."""
    [row] = [row for row in table.rows if row[: len(starts)] == starts]
    return dict(zip([column.title for column in table.columns], row, strict=True))


@dataclass(frozen=True, kw_only=True)
class Squared(Measurement):
    """Returns the square of its number."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        return {"square": self.arguments["number"] ** 2}


@dataclass(frozen=True, kw_only=True)
class Diverging(Measurement):
    """Fails as a run does."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        raise Diverged("the loss is nan")


@dataclass(frozen=True, kw_only=True)
class Dying(Measurement):
    """Ends its process."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        os._exit(3)


@dataclass(frozen=True, kw_only=True)
class Interrupted(Measurement):
    """Is interrupted from the keyboard."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        raise KeyboardInterrupt


@dataclass(frozen=True, kw_only=True)
class Sleeping(Measurement):
    """Takes longer than anybody waits."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        time.sleep(600)
        return {}


def squared(number: int) -> Squared:
    return Squared(function="made_up:squared", arguments={"number": number})
