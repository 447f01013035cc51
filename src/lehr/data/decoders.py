"""Worker processes that decode images while something else is computed.

They are fresh processes with two pipes each, and no forks: a fork would copy the state of a GPU, and of threads that do
not exist in it. A thread for each of them puts the pixels right where they are wanted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import IO

import numpy as np
import numpy.typing as npt

from lehr import validate
from lehr.data import decoder_process
from lehr.data.decoding import HAS_CHANGED, Listed, Pixels, pixels_of_listed

_COMMAND = (sys.executable, "-P", "-m", "lehr.data.decoder_process")
_PIPE_BYTES = 2**20  # several images, so that a worker need not wait for every one to be taken
Wait = Callable[[], None]


class WorkerLost(Exception):
    """A worker process ended before it had answered."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Files to decode, where their pixels go, and where it is noted which of them are images."""

    files: Sequence[Listed]
    pixels: Pixels  # of shape BCHW; what is no image stays as it is
    is_image: npt.NDArray[np.bool_]

    def note(self, place: int, pixels: Pixels | None) -> None:
        """Put one image in its place."""
        self.is_image[place] = pixels is not None
        if pixels is not None:
            self.pixels[place] = pixels


class Decoders:
    """So many worker processes, started when they are first needed; with none, images are decoded where they are asked.

    What comes out does not depend on their number: an image is decoded by itself.
    """

    def __init__(self, workers: int) -> None:
        self.workers = validate.count(minimum=0, workers=workers)
        self._running: _Running | None = None

    def start(self, job: Job) -> Wait:
        """Begin with the job; calling what is returned waits until it is done, and raises what went wrong."""
        if not self.workers:
            return partial(_done_here, job)
        if self._running is None:
            self._running = _Running(self.workers)
        done = self._running.threads.submit(self._running.run, job)
        return lambda: self._finish(done.result)

    def pids(self) -> tuple[int, ...]:
        """The numbers of the processes that run now."""
        return () if self._running is None else tuple(process.pid for process in self._running.processes)

    def close(self) -> None:
        """End the processes. The next job starts new ones."""
        if self._running is not None:
            self._running.end()
            self._running = None

    def _finish(self, wait: Wait) -> None:
        try:
            wait()
        except WorkerLost:
            self.close()
            raise


class _Running:
    """Processes that run, and a thread to talk with each."""

    def __init__(self, workers: int) -> None:
        self.processes = [_started() for _ in range(workers)]
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="lehr-decoder")
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self.processes:
            self._idle.put(process)
        self.end = weakref.finalize(self, _ended, self.threads, self.processes)

    def run(self, job: Job) -> None:
        process = self._idle.get()
        try:
            _ask(process, job)
        finally:
            self._idle.put(process)


def _started() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))  # it must find what this process has found
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with suppress(AttributeError, OSError):  # where a pipe cannot be so large, a worker waits more often
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
    return process


def _ended(threads: ThreadPoolExecutor, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # it has nothing to lose, and whoever waits for it is told
    threads.shutdown(wait=False, cancel_futures=True)  # this may run in one of them
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            _close(pipe)


def _close(pipe: IO[bytes] | None) -> None:
    with suppress(OSError):  # something was left to be sent, and nobody is there to read it
        if pipe is not None:
            pipe.close()


def _ask(process: subprocess.Popen[bytes], job: Job) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    side, channels = job.pixels.shape[-1], job.pixels.shape[1]
    try:
        process.stdin.write(decoder_process.asked(job.files, side=side, channels=channels))
        process.stdin.flush()
        failures = [_receive(process.stdout, job, place) for place in range(len(job.files))]
    except (BrokenPipeError, EOFError) as error:
        raise WorkerLost from error
    for number in filter(None, failures):
        raise OSError(number, HAS_CHANGED if number == errno.ESTALE else os.strerror(number))


def _receive(answers: IO[bytes], job: Job, place: int) -> int:
    """Take the answer about one file; the number of the error where it was not read."""
    kind = _exactly(answers, 1)
    if kind == decoder_process.NOT_READ:
        [number] = decoder_process.ERROR.unpack(_exactly(answers, decoder_process.ERROR.size))
        return int(number)
    job.is_image[place] = kind == decoder_process.READ
    if kind == decoder_process.READ:
        row = memoryview(job.pixels[place]).cast("B")
        if answers.readinto(row) != len(row):  # type: ignore[attr-defined]
            raise EOFError
    return 0


def _exactly(answers: IO[bytes], count: int) -> bytes:
    found = answers.read(count)
    if len(found) != count:
        raise EOFError
    return found


def _done_here(job: Job) -> None:
    side, channels = job.pixels.shape[-1], job.pixels.shape[1]
    for place, file in enumerate(job.files):
        job.note(place, pixels_of_listed(file, side=side, channels=channels))
