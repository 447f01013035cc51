"""Decoding of image files to uint8 pixels of shape CHW, in this process or in worker processes. Needs no torch.

- ``decode``, ``decode_listed``: one file
- ``python -m lehr.data.decoding``: a worker process, which answers requests on standard input
- ``DecoderPool``: worker processes, and a thread for each that puts pixels where they are wanted

Workers are fresh processes with two pipes each, not forks: a fork would copy GPU state, and locks of threads that do
not exist in it. A worker ends when its input does, shares no memory, uses no GPU and reads no pickle. The protocol:

    request    a line of JSON: side, channels, and for each file its name, size, time of change and hash
    answer     a line of JSON: for each file 0, NOT_AN_IMAGE, or the number of an error; then the pixels of the images
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from queue import SimpleQueue
from typing import IO, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from lehr import validate
from lehr.errors import MissingExtra

# Formats that Pillow decodes itself; for some others it starts a program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
MODES = {1: "L", 3: "RGB"}
MOST_PIXELS = 64 * 1024**2
_PIXELS_PER_BYTE, _FEW_PIXELS = 10_000, 1024**2  # no format of ours holds more in a byte, but for images of one colour
MOST_BYTES = 1024**3
DIGEST_BYTES = 16
_STANDARD_ERROR = 2
_ONE_AT_A_TIME = threading.Lock()  # two at once would not restore the state
HAS_CHANGED = "a file has changed since it was listed"
_COMMAND = (sys.executable, "-P", "-m", "lehr.data.decoding")
_PIPE_BYTES = 2**20  # several images, so that a worker need not wait for each to be read

Pixels = npt.NDArray[np.uint8]
Wait = Callable[[], None]


class ListedFile(NamedTuple):
    """A file as it was when it was listed."""

    path: bytes
    num_bytes: int
    changed_at: int  # nanoseconds
    digest: bytes = b""  # of its bytes, where they were hashed


def require_pillow() -> None:
    """Raise ``MissingExtra`` where Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Pillow", extra="images") from error


def decode(file: IO[bytes], *, channels: int, size: tuple[int, int] | None = None, centre_crop: bool = False) -> Pixels:
    """Return the image as bytes of shape CHW, scaled to ``size`` (height, width) if given.

    ``centre_crop`` takes the largest central square first. A decoder of a hostile file can raise anything.
    """
    from PIL import Image

    most_pixels = min(MOST_PIXELS, max(_FEW_PIXELS, _PIXELS_PER_BYTE * file.seek(0, os.SEEK_END)))
    file.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            width, height = image.size
            if width * height > most_pixels:
                raise ValueError(f"{width} × {height} pixels, more than {most_pixels:,} for a file of its size")
            converted = image.convert(MODES[channels])
    box = None
    if centre_crop:
        short = min(width, height)
        left, top = (width - short) // 2, (height - short) // 2
        box = (left, top, left + short, top + short)
    if size is not None:
        converted = converted.resize((size[1], size[0]), box=box)
    rows = np.array(converted, dtype=np.uint8).reshape(converted.height, converted.width, channels)
    return rows.transpose(2, 0, 1)


def decode_listed(file: ListedFile, *, side: int, channels: int) -> Pixels | None:
    """Return the centre square of the image in a file, or None where its bytes are not an image.

    That depends on the bytes alone. A file that cannot be read or has changed since it was listed raises ``OSError``.
    """
    content = _content(file)
    try:
        with _silence():
            return decode(BytesIO(content), channels=channels, size=(side, side), centre_crop=True)
    except MemoryError:
        raise
    except Exception:  # a decoder can raise anything
        return None


def _content(file: ListedFile) -> bytes:
    # O_NONBLOCK: opening a pipe would wait for a writer.
    with open(file.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        about = os.fstat(opened.fileno())
        content = opened.read(file.num_bytes + 1)
    if (about.st_size, about.st_mtime_ns, len(content)) != (file.num_bytes, file.changed_at, file.num_bytes):
        raise OSError(errno.ESTALE, HAS_CHANGED, os.fsdecode(file.path))
    if file.digest and hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest() != file.digest:
        raise OSError(errno.ESTALE, HAS_CHANGED, os.fsdecode(file.path))
    return content


@contextmanager
def _silence() -> Iterator[None]:
    """Discard what decoders print and log about a file: it would reveal when its record was drawn.

    C libraries write to the descriptor of standard error directly, so it is redirected.
    """
    logger, discard = logging.getLogger("PIL"), logging.NullHandler()
    with _ONE_AT_A_TIME, ExitStack() as after:
        after.callback(setattr, logger, "propagate", logger.propagate)
        after.callback(logger.removeHandler, discard)
        logger.addHandler(discard)
        logger.propagate = False
        with suppress(OSError):  # there is no standard error
            kept = os.dup(_STANDARD_ERROR)
            after.callback(os.close, kept)
            after.callback(os.dup2, kept, _STANDARD_ERROR)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            after.callback(os.close, nowhere)
            os.dup2(nowhere, _STANDARD_ERROR)
        yield


def versions() -> str:
    """Return the versions of Pillow and its libraries, on which the pixels may depend."""
    import PIL
    from PIL import features

    libraries = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")}
    return f"Pillow {PIL.__version__}, " + ", ".join(f"{name} {version}" for name, version in libraries.items())


NOT_AN_IMAGE = -1


def pack_request(files: Sequence[ListedFile], *, side: int, channels: int) -> bytes:
    """Return a request as it is sent to a worker."""
    listed = [(os.fsdecode(path), size, changed_at, digest.hex()) for path, size, changed_at, digest in files]
    return json.dumps([side, channels, listed]).encode() + b"\n"


def answer_request(requests: BinaryIO, answers: BinaryIO) -> bool:
    """Answer one request; return False at the end of the input."""
    if not (line := requests.readline()).endswith(b"\n"):
        return False
    side, channels, listed = json.loads(line)
    states, images = [], []
    for path, num_bytes, changed_at, digest in listed:
        file = ListedFile(os.fsencode(path), num_bytes, changed_at, bytes.fromhex(digest))
        try:
            pixels = decode_listed(file, side=side, channels=channels)
        except OSError as error:
            states.append(error.errno or errno.EIO)
        else:
            states.append(NOT_AN_IMAGE if pixels is None else 0)
            images.append(b"" if pixels is None else pixels.tobytes())
    answers.write(json.dumps(states).encode() + b"\n" + b"".join(images))
    answers.flush()
    return True


class WorkerDied(Exception):
    """A worker process ended before it had answered."""


@dataclass(frozen=True, kw_only=True)
class DecodeJob:
    """Files to decode, and the arrays that receive their pixels and whether they are images."""

    files: Sequence[ListedFile]
    pixels: Pixels  # of shape BCHW; rows of files that are not images stay unchanged
    is_image: npt.NDArray[np.bool_]

    def run_here(self) -> None:
        """Decode in this process."""
        for index, file in enumerate(self.files):
            pixels = decode_listed(file, side=self.pixels.shape[-1], channels=self.pixels.shape[1])
            self.is_image[index] = pixels is not None
            if pixels is not None:
                self.pixels[index] = pixels

    def run_on(self, process: subprocess.Popen[bytes]) -> None:
        """Have a worker process decode."""
        assert process.stdin is not None
        assert process.stdout is not None
        request = pack_request(self.files, side=self.pixels.shape[-1], channels=self.pixels.shape[1])
        try:
            process.stdin.write(request)
            process.stdin.flush()
            if not (line := process.stdout.readline()).endswith(b"\n"):
                raise WorkerDied
            states = json.loads(line)
            for index, state in enumerate(states):
                self.is_image[index] = state == 0
                if state == 0:
                    row = memoryview(self.pixels[index]).cast("B")
                    if process.stdout.readinto(row) != len(row):  # type: ignore[attr-defined]
                        raise WorkerDied
        except BrokenPipeError as error:
            raise WorkerDied from error
        for number in states:
            if number > 0:
                raise OSError(number, HAS_CHANGED if number == errno.ESTALE else os.strerror(number))


class DecoderPool:
    """Worker processes that start when first needed; with 0 workers, images are decoded in this process.

    The pixels do not depend on the number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.workers = validate.count(minimum=0, workers=workers)
        self._processes: _Processes | None = None

    def start(self, job: DecodeJob) -> Wait:
        """Start the job; calling the result waits until it is done and raises what went wrong."""
        if not self.workers:
            return job.run_here
        if self._processes is None:
            self._processes = _Processes(self.workers)
        done = self._processes.threads.submit(self._processes.run, job)
        return partial(self._finish, done)

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        return () if self._processes is None else tuple(process.pid for process in self._processes.all)

    def close(self) -> None:
        """End the processes. The next job starts new ones."""
        if self._processes is not None:
            self._processes.end()
            self._processes = None

    def _finish(self, done: Future[None]) -> None:
        try:
            done.result()
        except WorkerDied:
            self.close()
            raise


class _Processes:
    """Running worker processes, and a thread for each."""

    def __init__(self, workers: int) -> None:
        self.all = [_start_process() for _ in range(workers)]
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="lehr-decoder")
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for process in self.all:
            self._idle.put(process)
        self.end = weakref.finalize(self, _end_processes, self.threads, self.all)

    def run(self, job: DecodeJob) -> None:
        process = self._idle.get()
        try:
            job.run_on(process)
        finally:
            self._idle.put(process)


def _start_process() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))  # it must find the modules of this process
    environment = {**os.environ, "PYTHONPATH": path}
    process = subprocess.Popen(_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with suppress(AttributeError, OSError):  # with a smaller pipe a worker waits more often
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[arg-type]
    return process


def _end_processes(threads: ThreadPoolExecutor, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # it has no state, and the thread that waits for it gets an EOFError
    threads.shutdown(wait=False, cancel_futures=True)  # this may run in one of them
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # the unsent rest of a request
                if pipe is not None:
                    pipe.close()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process is interrupted, and ends this one
    while answer_request(sys.stdin.buffer, sys.stdout.buffer):
        pass


if __name__ == "__main__":
    main()
