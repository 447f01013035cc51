"""Runs the jobs that are not in the store yet, in one process or several. Each outcome is kept as soon as it is known.

Stopping loses only the jobs that are running. After ``deadline_seconds`` no further job is started, so a table can be
filled over several short sessions on a GPU. A process gets jobs of the shape that it has compiled already, as long as
there are any.
"""

from __future__ import annotations

import gc
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from experiments.experiment import Job, Measurement, Training, key_of
from experiments.store import Store, machine
from lehr import validate
from lehr.errors import LehrError, StoreError


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult:
    """How a job ended: with an outcome, or with an error."""

    job: Job
    seconds: float = 0.0
    accuracy: float | None = None
    error: str | None = None
    is_unexpected: bool = False  # not an error of Lehr: the process may be in any state


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """How many jobs are done, failed, and left: not started, or lost when time was up."""

    done: int
    failed: int
    left: int


class Progress:
    """Prints a line when the first job starts, which may take a while, and one for each job that ends."""

    def __init__(
        self, say: Callable[[str], None] = lambda line: None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._jobs = self._done = self._failed = self._ended = 0
        self._has_started = False
        self._began = clock()

    def began(self, *, jobs: int, done: int) -> None:
        """Say how many jobs there are, of which some are done from before."""
        self._jobs, self._done, self._began = jobs, done, self._clock()
        left = jobs - done
        self._say(f"{left} job{'' if left == 1 else 's'} to do" + (f", {done} done before" if done else ""))

    def started(self, job: Job) -> None:
        """Say which job is the first."""
        if not self._has_started:
            self._say(f"{describe(job)} started")
        self._has_started = True

    def ended(self, result: JobResult) -> None:
        """Say how a job ended, how many are done, and how long the rest takes at this rate."""
        self._done, self._failed = self._done + (result.error is None), self._failed + (result.error is not None)
        self._ended += 1
        seconds, left = self._clock() - self._began, self._jobs - self._done - self._failed
        minutes = math.ceil(seconds / self._ended * left / 60)
        time_left = f", about {minutes} min left" if minutes < 120 else f", about {minutes / 60:.1f} h left"
        counts = f"{self._done} of {self._jobs} done, {self._failed} failed, {seconds:.0f} s{time_left if left else ''}"
        if result.error is not None:
            self._say(f"{describe(result.job)} failed: {result.error} ({counts})")
            return
        reached = "" if result.accuracy is None else f": accuracy {result.accuracy:.2%}"
        self._say(f"{describe(result.job)} done in {result.seconds:.0f} s{reached} ({counts})")


def describe(job: Job) -> str:
    """Return a job in a few words."""
    if not isinstance(job, Training):
        return f"measurement {job.function}"
    config = job.config
    words = [f"{name} {value}" for name, value in config.model.items() if isinstance(value, str) and name != "network"]
    rate = [] if config.method.learning_rate is None else [f"rate {config.method.learning_rate:g}"]
    batch = f"batch {job.batch_size:g}, seed {job.seed}"
    return ", ".join([f"{config.method.name} on {config.data.name}", str(config.model.network), *words, *rate, batch])


def run_all(
    jobs: Sequence[Job],
    store: Store,
    *,
    device: str | None = None,
    data_dir: str | None = None,
    processes: int = 1,
    deadline_seconds: float | None = None,
    commit: str | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Run what the store lacks. With one process, that is this one."""
    from lehr.training.prepare import check_device

    validate.count(processes=processes)
    progress = progress or Progress()
    unique = {key_of(job): job for job in jobs}
    todo = [job for job in unique.values() if not store.has(job)]
    progress.began(jobs=len(unique), done=len(unique) - len(todo))
    if todo:
        where = str(check_device(device))  # refused once, not by every job
        runner = Runner(store=store, device=where, data_dir=data_dir, about=machine(where, commit=commit))
        until = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        timed = [job for job in todo if isinstance(job, Measurement) and job.takes_times]
        others = [job for job in todo if job not in timed]
        for part, number in ((others, processes), (timed, 1)):
            if processes == 1:
                _run_here(part, runner, until=until, progress=progress)
            elif part:
                _Workers(JobQueue(part), runner, until=until, progress=progress).run(min(number, len(part)))
    done, failed = sum(map(store.has, unique.values())), len(store.failures(todo))
    return Summary(done=done, failed=failed, left=len(unique) - done - failed)


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs a job and keeps its outcome."""

    store: Store
    device: str
    data_dir: str | None
    about: Mapping[str, Any]

    def __call__(self, job: Job) -> JobResult:
        """Run a job. A job that fails does not end the others; a store that cannot be written to ends them all."""
        began = time.perf_counter()
        try:
            if isinstance(job, Measurement):
                outcome = job.called(device=self.device, data_dir=self.data_dir)
            else:
                from experiments.training import train

                outcome = train(job, device=self.device, data_dir=self.data_dir)
            self.store.keep(job, outcome, about=self.about)
        except Exception as error:
            words, seconds = f"{type(error).__name__}: {error}", time.perf_counter() - began
            return self.failed(job, words, seconds=seconds, is_unexpected=not isinstance(error, LehrError))
        return JobResult(job=job, seconds=time.perf_counter() - began, accuracy=outcome.get("accuracy"))

    def failed(self, job: Job, error: str, *, seconds: float = 0.0, is_unexpected: bool = True) -> JobResult:
        """Keep that a job failed."""
        self.store.keep_failure(job, error, about=self.about)
        return JobResult(job=job, seconds=seconds, error=error, is_unexpected=is_unexpected)


class JobQueue:
    """Jobs in order of worth, grouped by what is compiled alike."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._groups: dict[str, deque[Job]] = {}
        for job in jobs:
            self._groups.setdefault(shape_of(job), deque()).append(job)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def next_for(self, last: str | None, at_work: Sequence[str]) -> Job | None:
        """Return the next job of a process, by the shape of its last one and the shapes others work on.

        Shapes that nobody works on come first, then those with the most jobs left for each process on them.
        """
        if not self._groups:
            return None
        busy = Counter(at_work)

        def order(shape: str) -> tuple[bool, float]:
            return busy[shape] > 0, -len(self._groups[shape]) / (busy[shape] + 1) if busy[shape] else 0.0

        shape = last if last in self._groups else min(self._groups, key=order)
        group = self._groups[shape]
        job = group.popleft()
        if not group:
            del self._groups[shape]
        return job


def shape_of(job: Job) -> str:
    """Return what decides how a job is compiled."""
    if not isinstance(job, Training):
        return f"measurement {job.function}"
    words = job.to_json()
    names = ("data", "network", "method", "physical_batch", "views", "precision")
    return json.dumps([*map(words.get, names), job.config.method.clip_norm, job.batch_size])


def _is_over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def _run_here(jobs: Sequence[Job], runner: Runner, *, until: float | None, progress: Progress) -> None:
    queue, last = JobQueue(jobs), None
    while not _is_over(until) and (job := _next(queue, runner.store, last, ())) is not None:
        progress.started(job)
        progress.ended(runner(job))
        last = shape_of(job)


def _next(queue: JobQueue, store: Store, last: str | None, at_work: Sequence[str]) -> Job | None:
    """Return the next job that is not done: another command may fill the same store."""
    while (job := queue.next_for(last, at_work)) is not None and store.has(job):
        pass
    return job


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    shape: str | None = None


@dataclass
class _Workers:
    """Processes that are given one job after the other."""

    queue: JobQueue
    runner: Runner
    until: float | None
    progress: Progress
    _at_work: list[_Worker] = field(default_factory=list)

    def run(self, number: int) -> None:
        """Run all jobs, or as many as there is time for."""
        try:
            for _ in range(number):
                self._give_job(self._start())
            while self._at_work:
                ready = wait([worker.pipe for worker in self._at_work])
                for worker in [each for each in self._at_work if each.pipe in ready]:
                    self._receive(worker)
        finally:
            for worker in self._at_work:  # all, before any is joined: a second Ctrl-C ends the waiting
                worker.process.terminate()
            for worker in self._at_work:
                worker.process.join()

    def _start(self) -> _Worker:
        ours, theirs = (spawning := multiprocessing.get_context("spawn")).Pipe()
        # Not a daemon: a compiler starts processes of its own.
        process = spawning.Process(target=_work, args=(theirs, self.runner))
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _give_job(self, worker: _Worker) -> None:
        others = [each.shape for each in self._at_work if each is not worker and each.shape is not None]
        job = None if _is_over(self.until) else _next(self.queue, self.runner.store, worker.shape, others)
        if worker not in self._at_work:
            self._at_work.append(worker)
        if job is None:
            self._stop(worker)
            return
        worker.job, worker.shape = job, shape_of(job)
        self.progress.started(job)
        with suppress(BrokenPipeError):  # a dead process is noticed when its result is received
            worker.pipe.send(job)

    def _receive(self, worker: _Worker) -> None:
        assert worker.job is not None
        try:
            result: JobResult | StoreError = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join()
            result = self.runner.failed(worker.job, f"its process ended with exit code {worker.process.exitcode}")
        if isinstance(result, StoreError):
            raise result
        self.progress.ended(result)
        if not result.is_unexpected:
            self._give_job(worker)
            return
        self._stop(worker)
        if len(self.queue) and not _is_over(self.until):
            self._give_job(self._start())

    def _stop(self, worker: _Worker) -> None:
        self._at_work.remove(worker)
        with suppress(OSError):
            worker.pipe.send(None)
        worker.pipe.close()
        worker.process.join()


def _work(pipe: Connection, runner: Runner) -> None:
    """Run the jobs that come through the pipe. Ctrl-C is for the parent process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when a job imports it; measurements may not need torch
    with suppress(EOFError, BrokenPipeError):  # the parent process is gone
        while (job := pipe.recv()) is not None:
            try:
                pipe.send(runner(job))
            except StoreError as error:  # the parent reports it once, not each process
                pipe.send(error)
            gc.collect()
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # other processes on the same GPU may need the memory
