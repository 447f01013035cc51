"""Loops of other libraries on several processes, for tests: real ones, which meet by gloo."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.errors import LehrError
from lehr.privacy.rng import RunKey
from tests.several_ranks import meet, met

Loop = Callable[..., dict[str, Any]]


def in_turn(
    total: int, folder: Path, loop: Loop, jobs: Sequence[tuple[str, Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What ``loop(folder / name, rank, **job)`` returns on each rank, or its error, by the name of the job.

    Of several jobs of one name, which continue one another, this is the last one's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [dict(answers) for answers in met(total, folder / "meeting", _rank, folder, loop, list(jobs))]


def alone(folder: Path, loop: Loop, **job: Any) -> dict[str, Any]:
    """The same in this process, with the same key."""
    with pytest.MonkeyPatch.context() as patched:
        _fix_key(patched)
        return loop(folder, 0, **job)


def _fix_key(patched: pytest.MonkeyPatch) -> None:
    """One key everywhere, and one number for the attempts of resumed runs, so that two of them can be compared."""
    patched.setattr(RunKey, "fresh", lambda **settings: RunKey(bytes(range(32)), **settings))
    patched.setattr(RunKey, "fresh_attempt", lambda: 7)


def _rank(rank: int, total: int, meeting: Path, pipe: Any, folder: Path, loop: Loop, jobs: list[Any]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(total), "LOCAL_WORLD_SIZE": str(total)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # not used: the ranks have met when accelerate asks
    meet(rank, total, meeting, timeout=60)
    _fix_key(pytest.MonkeyPatch())
    for name, job in jobs:
        try:
            pipe.send((name, loop(folder / name, rank, **job)))
        except (LehrError, KeyboardInterrupt) as error:
            pipe.send((name, {"error": f"{type(error).__name__}: {error}"}))
    pipe.close()
    os._exit(0)
