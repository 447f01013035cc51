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
class MadeUp(Measurement):
    """A measurement that needs no preset: it squares a number, or does what a word says; by default it sleeps."""

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        what: Any = self.arguments["what"]
        match what:
            case "diverge":
                raise Diverged("the loss is nan")
            case "interrupt":
                raise KeyboardInterrupt
            case "die":
                os._exit(3)
            case str():
                time.sleep(600)
        return {"square": what**2}


def made_up(what: int | str, *, is_timing: bool = False) -> MadeUp:
    return MadeUp(function="made_up:job", arguments={"what": what}, is_timing=is_timing)
