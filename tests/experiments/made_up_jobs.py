"""Small jobs, and measurements that need no preset."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from experiments.experiment import Job, Measurement, Training, training
from lehr.errors import Diverged

ABOUT: dict[str, Any] = {
    "machine": "2 CPU cores",
    "versions": {"python": "3.11"},
    "commit": None,
    "date": "2026-11-16",
}


def tiny(**changed: Any) -> Training:
    """A few steps on the digits, changed as said."""
    said: dict[str, Any] = {
        "data": "digits",
        "network": ("small_cnn", {}),
        "method": "dpsgd",
        "seed": 0,
        "expected_batch_size": 32,
        "steps": 4,
        "noise_multiplier": 1.0,
        "delta": 1e-4,
        **changed,
    }
    return training(**said)


def words_of(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """The words of jobs that are all training runs."""
    words = [job.to_json() for job in jobs]
    assert {each["kind"] for each in words} == {"training"}
    return words


@dataclass(frozen=True, kw_only=True)
class Squared(Measurement):
    """Gives its number's square."""

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        return {"square": self.arguments["number"] ** 2}


@dataclass(frozen=True, kw_only=True)
class Diverging(Measurement):
    """Fails as a run does."""

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        raise Diverged("the loss is nan")


@dataclass(frozen=True, kw_only=True)
class Dying(Measurement):
    """Takes its process with it."""

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        os._exit(3)


@dataclass(frozen=True, kw_only=True)
class Interrupted(Measurement):
    """Is stopped by somebody at the keyboard."""

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        raise KeyboardInterrupt


def squared(number: int) -> Squared:
    return Squared(function="made_up:squared", arguments={"number": number})
