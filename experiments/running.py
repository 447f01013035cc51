"""Runs the jobs that are not in the store yet, in one process or several; stores each outcome as soon as it is known.

Stopping loses only the jobs that are running. After ``deadline_seconds`` no further job is started, so a table can be
filled over several short sessions on a GPU. Jobs that compile to the same step run in one process, one after another.
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
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

    @property
    def jobs(self) -> int:
        return self.done + self.failed + self.left


class Progress:
    """Prints a line when the first job starts, which may take a while, and one for each job that ends."""

    def __init__(
        self, print_line: Callable[[str], None] = lambda line: None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._print, self._clock = print_line, clock
        self._jobs = self._done = self._failed = self._ended = 0
        self._has_started = False
        self._began = clock()

    def began(self, *, jobs: int, done: int) -> None:
        """Print how many jobs there are."""
        self._jobs, self._done, self._began = jobs, done, self._clock()
        left = jobs - done
        self._print(f"{left} job{'' if left == 1 else 's'} to do" + (f", {done} done before" if done else ""))

    def started(self, job: Job) -> None:
        """Print the first job."""
        if not self._has_started:
            self._print(f"{describe(job)} started")
        self._has_started = True

    def ended(self, result: JobResult) -> None:
        """Print how a job ended, how many are done, and how long the rest takes at this rate."""
        self._done, self._failed = self._done + (result.error is None), self._failed + (result.error is not None)
        self._ended += 1
        seconds, left = self._clock() - self._began, self._jobs - self._done - self._failed
        minutes = math.ceil(seconds / self._ended * left / 60)
        time_left = f", about {minutes} min left" if minutes < 120 else f", about {minutes / 60:.1f} h left"
        counts = f"{self._done} of {self._jobs} done, {self._failed} failed, {seconds:.0f} s{time_left if left else ''}"
        how = f"failed: {result.error}"
        if result.error is None:
            accuracy = "" if result.accuracy is None else f": accuracy {result.accuracy:.2%}"
            how = f"done in {result.seconds:.0f} s{accuracy}"
        self._print(f"{describe(result.job)} {how} ({counts})")


def describe(job: Job) -> str:
    """A job in a few words."""
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
    """Run the jobs that the store lacks. With one process, that is this one."""
    from lehr.training.prepare import check_device

    validate.count(processes=processes)
    progress = progress or Progress()
    unique = {key_of(job): job for job in jobs}
    todo = [job for job in unique.values() if not store.has(job)]
    progress.began(jobs=len(unique), done=len(unique) - len(todo))
    if todo:
        where = str(check_device(device))  # refused once, not by every job
        runner = Runner(
            store=store,
            device=where,
            data_dir=data_dir,
            about=machine(where, commit=commit),
            until=math.inf if deadline_seconds is None else time.monotonic() + deadline_seconds,
        )
        timings = [job for job in todo if isinstance(job, Measurement) and job.is_timing]
        others = [job for job in todo if job not in timings]
        if processes == 1:
            for group in batches([*others, *timings], processes=1):
                for result in runner.results(group, progress.started):
                    progress.ended(result)
        else:
            _run_in_processes(batches(others, processes=processes), runner, processes, progress)
            _run_in_processes(batches(timings, processes=1), runner, 1, progress)
    done, failed = sum(map(store.has, unique)), len(store.failures(todo))
    return Summary(done=done, failed=failed, left=len(unique) - done - failed)


def batches(jobs: Sequence[Job], *, processes: int) -> list[list[Job]]:
    """The jobs of each process: those that are compiled alike, and no more than an equal share of all."""
    by_shape: dict[str, list[Job]] = {}
    for job in jobs:
        by_shape.setdefault(shape_of(job), []).append(job)
    most = math.ceil(len(jobs) / processes)
    return [group[first : first + most] for group in by_shape.values() for first in range(0, len(group), most)]


def shape_of(job: Job) -> str:
    """What decides how a job is compiled."""
    if not isinstance(job, Training):
        return f"measurement {job.function}"
    shape = job.to_json()
    names = ("data", "network", "method", "physical_batch", "views", "precision")
    return json.dumps([*map(shape.get, names), job.config.method.clip_norm, job.batch_size])


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs jobs and stores their outcomes."""

    store: Store
    device: str
    data_dir: str | None
    about: Mapping[str, Any]
    until: float = math.inf  # by the monotonic clock, which all processes share

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def results(self, jobs: Sequence[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[JobResult]:
        """Run jobs until the time is over, except those that another command has done meanwhile."""
        for job in jobs:
            if not self.is_over and not self.store.has(job):
                started(job)
                yield self.run(job)

    def run(self, job: Job) -> JobResult:
        """Run a job. A failing job does not end the others; a store that cannot be written to ends them all."""
        began = time.perf_counter()
        try:
            if isinstance(job, Measurement):
                outcome = job.run(device=self.device, data_dir=self.data_dir)
            else:
                from experiments.training import train

                outcome = train(job, device=self.device, data_dir=self.data_dir)
            self.store.keep(job, outcome, about=self.about)
        except Exception as error:
            return self.fail(job, f"{type(error).__name__}: {error}", is_unexpected=not isinstance(error, LehrError))
        return JobResult(job=job, seconds=time.perf_counter() - began, accuracy=outcome.get("accuracy"))

    def fail(self, job: Job, error: str, *, is_unexpected: bool = True) -> JobResult:
        """Store that a job failed."""
        self.store.keep_failure(job, error, about=self.about)
        return JobResult(job=job, error=error, is_unexpected=is_unexpected)


def _run_in_processes(groups: Sequence[list[Job]], runner: Runner, number: int, progress: Progress) -> None:
    """Run each group in a process of its own, so many at once."""
    waiting = deque(groups)
    workers: dict[Connection, tuple[SpawnProcess, list[Job]]] = {}  # and the jobs that they have not reported yet
    try:
        while workers or (waiting and not runner.is_over):
            while waiting and len(workers) < number and not runner.is_over:
                jobs = waiting.popleft()
                progress.started(jobs[0])
                pipe, process = _start(jobs, runner)
                workers[pipe] = process, jobs
            ready: list[Any] = wait([*workers])
            for pipe in ready:
                process, jobs = workers[pipe]
                try:
                    result: JobResult = pipe.recv()
                    jobs.remove(result.job)
                    progress.ended(result)
                except (EOFError, ConnectionResetError):
                    process.join()
                    del workers[pipe]
                    left = [job for job in jobs if not runner.store.has(job)]
                    if process.exitcode and left:
                        progress.ended(runner.fail(left.pop(0), f"its process ended with exit code {process.exitcode}"))
                    if left:  # in a fresh process
                        waiting.appendleft(left)
    finally:
        for process, _ in workers.values():  # all, before any is joined: a second Ctrl-C ends the waiting
            process.terminate()
        for process, _ in workers.values():
            process.join()


def _start(jobs: list[Job], runner: Runner) -> tuple[Connection, SpawnProcess]:
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=_work, args=(theirs, jobs, runner))  # no daemon: a compiler starts processes
    process.start()
    theirs.close()
    return ours, process


def _work(pipe: Connection, jobs: Sequence[Job], runner: Runner) -> None:
    """Run jobs and send their results. Ctrl-C is for the parent process, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # torch reads it when a job imports it; measurements may not need torch
    try:
        for result in runner.results(jobs):
            pipe.send(result)
            if result.is_unexpected:
                return
            gc.collect()
            torch = sys.modules.get("torch")
            if torch is not None and torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # other processes on the same GPU may need the memory
    except BrokenPipeError:  # the parent process is gone
        return
    except StoreError:  # the parent process meets the same error and reports it once
        sys.exit(1)
