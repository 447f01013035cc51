"""Processes that spend privacy until they are killed or refused. As a script it forks them, one job per line of input.

Forking from one process that has loaded everything and opened nothing makes a start as cheap as a kill. A process
writes to the pipe after a call has returned, when it would use the value.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.accounting.filter import RenyiFilter
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded
from lehr.planning.budget import Budget

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
BLOCK = 3
BLOCKS_PER_RUN = 5
LIMITS = (1.0, 3.0)
FULL = {"full": True}
KILLED_BY_THEN_S = 120
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a file system in memory


def say(**what: object) -> None:
    """One write, which a pipe takes whole or not at all."""
    os.write(1, (json.dumps(what) + "\n").encode())


def record_until_killed(path: str, process: str) -> None:
    with Ledger.open(path) as ledger:
        while True:
            ledger.record(Repeated(STEP, BLOCK))
            say(recorded=BLOCK)


def use_first_until_killed(path: str, process: str) -> None:
    """The forbidden order."""
    with Ledger.open(path) as ledger:
        while True:
            say(recorded=BLOCK)
            ledger.record(Repeated(STEP, BLOCK))


def spend_until_killed(path: str, process: str) -> None:
    """Runs of five blocks, of which every other one stops after three and gives the rest back."""
    with Budget.open(path) as budget:
        for number in range(10**6):
            run = f"{process}.{number}"
            try:
                budget.reserve(Repeated(STEP, BLOCK * BLOCKS_PER_RUN), run=run)
            except BudgetExceeded:
                say(**FULL)
                return
            for _ in range(BLOCKS_PER_RUN - 2 * (number % 2)):
                budget.spend(run, Repeated(STEP, BLOCK))
                say(run=run, used=BLOCK)
            budget.settle(run)
            say(settled=run)


def create_until_killed(path: str, process: str) -> None:
    for number in range(10**6):
        budget_path, ledger_path = f"{path}.{process}.{number}.budget", f"{path}.{process}.{number}.ledger"
        say(creating=[budget_path, ledger_path])
        new_budget(budget_path).close()
        say(created=budget_path)
        new_ledger(ledger_path, steps=100).close()
        say(created=ledger_path)


def reserve_until_refused(path: str, process: str) -> None:
    """Large reservations while they fit, then single steps, so that nothing is left that any process could have had."""
    refused, number = 0, 0
    sizes = (25, 1)
    while refused < len(sizes):
        with Budget.open(path) as budget:
            for _ in range(5):
                number += 1
                try:
                    budget.reserve(Repeated(STEP, sizes[refused]), run=f"{process}.{number}")
                    say(reserved=sizes[refused])
                except BudgetExceeded:
                    refused += 1
                    break


def record_until_refused(path: str, process: str) -> None:
    with Ledger.open(path) as ledger:
        try:
            while True:
                ledger.record(Repeated(STEP, BLOCK))
                say(recorded=BLOCK)
        except BudgetExceeded:
            return


def new_budget(path: str | Path, *, epsilon: float = LIMITS[-1]) -> Budget:
    return Budget.create(path, dataset="images", epsilon=epsilon, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def new_ledger(path: str | Path, *, steps: int) -> Ledger:
    return Ledger.create(
        path, run="a run", plan_event=Repeated(STEP, steps), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE
    )


JOBS: dict[str, Callable[[str, str], None]] = {
    job.__name__: job
    for job in (
        record_until_killed,
        use_first_until_killed,
        spend_until_killed,
        create_until_killed,
        reserve_until_refused,
        record_until_refused,
    )
}


class Spenders:
    """The script's other end: starts processes, and hears what they said until they had ended."""

    def __init__(self, script: subprocess.Popen[str]) -> None:
        self._script = script

    def start(self, job: Callable[[str, str], None], path: Path, *, processes: list[str]) -> list[int]:
        """The ids of the processes, once all of them run."""
        assert self._script.stdin is not None
        self._script.stdin.write(json.dumps([job.__name__, str(path), processes]) + "\n")
        self._script.stdin.flush()
        ids: list[int] = self._hear()["started"]
        return ids

    def heard(self, count: int) -> list[dict[str, Any]]:
        """The next lines, fewer where a process has met its limit and waits for its end."""
        lines: list[dict[str, Any]] = []
        while len(lines) < count and FULL not in lines:
            lines.append(self._hear())
        return lines

    def said(self) -> list[dict[str, Any]]:
        """Everything said from now until all processes of the job had ended."""
        lines = [self._hear()]
        while "ended" not in lines[-1]:
            lines.append(self._hear())
        return lines[:-1]

    def _hear(self) -> dict[str, Any]:
        assert self._script.stdout is not None
        line: dict[str, Any] = json.loads(self._script.stdout.readline())
        assert "failed" not in line, line["failed"]
        return line


@contextmanager
def spenders() -> Iterator[Spenders]:
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as script:
        yield Spenders(script)


def _serve() -> None:
    for epsilon in LIMITS:  # the first look at an event is slow, and every forked process would take it again
        RenyiFilter.choose(epsilon=epsilon, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE).admits(STEP)
    for line in sys.stdin:
        job, path, processes = json.loads(line)
        begin, started = os.pipe()
        ids = [_fork(JOBS[job], path, process, begin, started) for process in processes]
        say(started=ids)
        os.close(begin)
        os.close(started)
        for one in ids:
            os.waitpid(one, 0)
        say(ended=True)


def _fork(job: Callable[[str, str], None], path: str, process: str, begin: int, started: int) -> int:
    child = os.fork()
    if child:
        return child
    signal.alarm(KILLED_BY_THEN_S)
    os.close(started)
    os.read(begin, 1)  # returns when every other end of the pipe is closed: all begin together, after the ids were said
    try:
        job(path, process)
        if "killed" in job.__name__:
            signal.pause()  # the id must stay this process's until the kill
    except BaseException:
        say(failed=traceback.format_exc()[-1500:])
    os._exit(0)


if __name__ == "__main__":
    _serve()
