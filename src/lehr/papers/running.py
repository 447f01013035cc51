"""Runs the jobs that are not in the store yet, several processes at once. Each outcome is kept as soon as it is known.

Whoever stops it loses the jobs that were running, and none that had ended. After ``deadline_seconds`` no further job is
begun, so that a table can be filled over several short hours on a machine with a GPU.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lehr import validate
from lehr.errors import LehrError, StoreError
from lehr.papers.job import Job, Measurement, key_of
from lehr.papers.store import Store, machine
from lehr.papers.waiting import Waiting, shape_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a job ended: with an outcome, or with an error."""

    job: Job
    seconds: float
    accuracy: float | None = None
    error: str | None = None
    is_foreign: bool = False  # an error that is none of ours: the process may be in any state


class RunningCallback:
    """Is told how the jobs go."""

    def began(self, *, jobs: int, done: int) -> None:
        """Before the first; some are done from before."""

    def took(self, job: Job) -> None:
        """A process has begun a job."""

    def ended(self, ended: Ended) -> None:
        """A job is over."""

    def closed(self) -> None:
        """Nothing more is run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How far it came."""

    done: int
    failed: int
    left: int  # not begun, or lost: the time was over


def run_all(
    jobs: Sequence[Job],
    store: Store,
    *,
    device: str | None = None,
    data_dir: str | None = None,
    processes: int = 1,
    deadline_seconds: float | None = None,
    commit: str | None = None,
    told: RunningCallback | None = None,
) -> Summary:
    """Run what the store lacks. With one process, that is this one."""
    validate.count(processes=processes)
    told = told or RunningCallback()
    every = {key_of(job): job for job in jobs}
    todo = [job for job in every.values() if not store.has(job)]
    told.began(jobs=len(every), done=len(every) - len(todo))
    try:
        if todo:
            where = _device(device)
            about = machine(where, commit=commit)
            attempt = Attempts(store=store, device=where, data_dir=data_dir, about=about)
            until = None if deadline_seconds is None else time.monotonic() + deadline_seconds
            _run(todo, attempt, processes=processes, until=until, told=told)
    finally:
        told.closed()
    done, failed = sum(map(store.has, every.values())), len(store.failures(todo))
    return Summary(done=done, failed=failed, left=len(every) - done - failed)


def _device(given: str | None) -> str:
    """The device that is asked for, or the best that is there; refused once, and not by every job."""
    from lehr.training.fit import a_device

    return str(a_device(given))


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """How a job is run, and where what comes of it is kept."""

    store: Store
    device: str
    data_dir: str | None
    about: Mapping[str, Any]

    def __call__(self, job: Job) -> Ended:
        """Run a job. One that fails must not end the others; a store that nothing can be written to ends them all."""
        begun = time.perf_counter()
        try:
            result = self._result(job)
            self.store.keep(job, result, about=self.about)
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            return replace(self.failed(job, words, is_foreign=not isinstance(error, LehrError)), seconds=_since(begun))
        return Ended(job=job, seconds=_since(begun), accuracy=result.get("accuracy"))

    def failed(self, job: Job, error: str, *, is_foreign: bool) -> Ended:
        """Keep that it failed."""
        self.store.keep_failure(job, error, about=self.about)
        return Ended(job=job, seconds=0.0, error=error, is_foreign=is_foreign)

    def _result(self, job: Job) -> dict[str, Any]:
        if isinstance(job, Measurement):
            return job.called(device=self.device, data_dir=self.data_dir)
        from lehr.papers.training import train

        return train(job, device=self.device, data_dir=self.data_dir)


def _since(begun: float) -> float:
    return time.perf_counter() - begun


def _run(todo: Sequence[Job], attempt: Attempts, *, processes: int, until: float | None, told: RunningCallback) -> None:
    alone = [job for job in todo if isinstance(job, Measurement) and job.takes_times]
    others = [job for job in todo if job not in alone]
    for part, number in ((others, processes), (alone, 1)):
        if processes == 1:
            _run_here(part, attempt, until=until, told=told)
        elif part:
            _Workers(Waiting(part), attempt, until=until, told=told).run(min(number, len(part)))


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _run_here(jobs: Sequence[Job], attempt: Attempts, *, until: float | None, told: RunningCallback) -> None:
    waiting, last = Waiting(jobs), None
    while not _is_over(until) and (job := _next(waiting, attempt.store, last, ())) is not None:
        told.took(job)
        told.ended(attempt(job))
        last = shape_of(job)


def _next(waiting: Waiting, store: Store, last: str | None, at_work: Sequence[str]) -> Job | None:
    """The next job that nobody has done: another command may fill the same store meanwhile."""
    while (job := waiting.next_for(last, at_work)) is not None and store.has(job):
        pass
    return job


# --- Several processes ----------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    shape: str | None = None


@dataclass
class _Workers:
    """Processes that are given one job after the other."""

    waiting: Waiting
    attempt: Attempts
    until: float | None
    told: RunningCallback
    _at_work: list[_Worker] = field(default_factory=list)

    def run(self, number: int) -> None:
        """All jobs, or as many as there is time for."""
        try:
            for _ in range(number):
                self._give(self._started())
            while self._at_work:
                ready = wait([worker.pipe for worker in self._at_work])
                for worker in [each for each in self._at_work if each.pipe in ready]:
                    self._hear(worker)
        finally:
            for worker in self._at_work:  # all, before any is waited for: a second key stroke ends the waiting
                worker.process.terminate()
            for worker in self._at_work:
                worker.process.join()

    def _started(self) -> _Worker:
        ours, theirs = (spawning := multiprocessing.get_context("spawn")).Pipe()
        # Not a daemon: a compiler starts processes of its own.
        process = spawning.Process(target=_work, args=(theirs, self.attempt))
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give(self, worker: _Worker) -> None:
        """The next job, or the leave to end."""
        others = [each.shape for each in self._at_work if each is not worker and each.shape is not None]
        job = None if _is_over(self.until) else _next(self.waiting, self.attempt.store, worker.shape, others)
        if worker not in self._at_work:
            self._at_work.append(worker)
        if job is None:
            self._let_go(worker)
            return
        worker.job, worker.shape = job, shape_of(job)
        self.told.took(job)
        with suppress(BrokenPipeError):  # one that is gone is noticed when it is listened to
            worker.pipe.send(job)

    def _hear(self, worker: _Worker) -> None:
        """What came of a job; of one whose process is gone, that."""
        assert worker.job is not None
        try:
            ended: Ended | StoreError = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            words = f"its process ended with exit code {worker.process.exitcode}"
            ended = self.attempt.failed(worker.job, words, is_foreign=True)
        if isinstance(ended, StoreError):
            raise ended
        self.told.ended(ended)
        if ended.is_foreign:
            self._let_go(worker)
            if len(self.waiting) and not _is_over(self.until):
                self._give(self._started())
            return
        self._give(worker)

    def _let_go(self, worker: _Worker) -> None:
        self._at_work.remove(worker)
        with suppress(OSError):
            worker.pipe.send(None)
        worker.pipe.close()
        worker.process.join()


def _work(pipe: Connection, attempt: Attempts) -> None:
    """What a process does: whoever stops the whole stops it from there, so that a key stroke is heard once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError):  # whoever asked is gone
        while (job := pipe.recv()) is not None:
            pipe.send(_ended(attempt, job))
            _tidy(torch)


def _ended(attempt: Attempts, job: Job) -> Ended | StoreError:
    """How a job ended; or why nothing can be kept, for whoever asked to say once, and not each process for itself."""
    try:
        return attempt(job)
    except StoreError as error:
        return error


def _tidy(torch: Any) -> None:
    """Give the memory of a run back, which other processes on the same GPU may need."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
