"""Decoding of image files to uint8 pixels of shape CHW, in this process or in worker processes. Needs no torch.

- ``decode``, ``decode_listed``: one file
- ``python -m lehr.data.decoding``: a worker process, which answers requests on standard input
- ``DecoderPool``: worker processes, and a thread for each that waits for its pixels

Workers are fresh processes with two pipes each, not forks: a fork would copy GPU state, and locks of threads that do
not exist in it. A worker ends when its input does, shares no memory, uses no GPU and reads no pickle. The protocol:

    request    a line of JSON: the path of a file, its size, time of change and hash; channels; height and width
    answer     four bytes: IMAGE, NOT_AN_IMAGE or the number of an error; then the pixels of an image
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import BytesIO
from queue import SimpleQueue
from typing import IO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lehr import validate
from lehr.errors import MissingExtra

# Formats that Pillow decodes itself; for some others it starts a program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
MODES = {1: "L", 3: "RGB"}
MOST_PIXELS = 64 * 1024**2
MOST_BYTES = 1024**3
DIGEST_BYTES = 16
IMAGE, NOT_AN_IMAGE = 0, -1
_STATE = struct.Struct("i")
_STANDARD_ERROR = 2
_ONE_AT_A_TIME = threading.Lock()  # two at once would not restore the state
_HAS_CHANGED = "a file has changed since it was listed"

Pixels: TypeAlias = "npt.NDArray[np.uint8]"
Size: TypeAlias = "tuple[int, int]"  # height, width


class ListedFile(NamedTuple):
    """A file as it was when it was listed."""

    path: bytes
    num_bytes: int
    changed_at: int  # nanoseconds
    digest: bytes = b""  # of its bytes, where they were hashed


class WorkerDied(Exception):
    """A worker process ended before it had answered."""


def require_pillow() -> None:
    """Raise ``MissingExtra`` where Pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingExtra("Pillow", extra="images") from error


def versions() -> str:
    """Return the versions of Pillow and its libraries, on which the pixels may depend."""
    import PIL
    from PIL import features

    libraries = {name: features.version(name) for name in ("jpg", "libjpeg_turbo", "zlib", "webp", "libtiff")}
    return f"Pillow {PIL.__version__}, " + ", ".join(f"{name} {version}" for name, version in libraries.items())


def digest_of(file: IO[bytes]) -> bytes:
    """Return the hash that ``ListedFile`` has of a file's bytes."""
    return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).digest()  # type: ignore[arg-type]


def decode(file: IO[bytes], *, channels: int, size: Size | None = None) -> Pixels:
    """Return the image as bytes of shape CHW; with a ``size``, its largest centre crop of these proportions, scaled.

    A decoder of a hostile file can raise anything.
    """
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        with Image.open(file, formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
            converted = image.convert(MODES[channels])
    if size is not None:
        converted = ImageOps.fit(converted, (size[1], size[0]))
    rows = np.array(converted, dtype=np.uint8).reshape(converted.height, converted.width, channels)
    return rows.transpose(2, 0, 1)


def decode_listed(file: ListedFile, *, channels: int, size: Size | None) -> Pixels | None:
    """Return the pixels of a file, or None where its bytes are not an image, which depends on the bytes alone.

    A file that cannot be read or has changed since it was listed raises ``OSError``.
    """
    # O_NONBLOCK: opening a pipe would wait for a writer.
    with open(file.path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        about = os.fstat(opened.fileno())
        content = BytesIO(opened.read(file.num_bytes + 1))
    found = about.st_size, about.st_mtime_ns, content.getbuffer().nbytes
    has_changed = found != (file.num_bytes, file.changed_at, file.num_bytes)
    if has_changed or (file.digest and file.digest != digest_of(content)):
        raise OSError(errno.ESTALE, _HAS_CHANGED)
    try:
        with _silence():
            return decode(content, channels=channels, size=size)
    except MemoryError:
        raise
    except Exception:  # a decoder can raise anything
        return None


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
            original = os.dup(_STANDARD_ERROR)
            after.callback(os.close, original)
            after.callback(os.dup2, original, _STANDARD_ERROR)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            after.callback(os.close, nowhere)
            os.dup2(nowhere, _STANDARD_ERROR)
        yield


class DecoderPool:
    """Worker processes that start when first needed; with 0 workers, images are decoded in this process.

    The pixels do not depend on the number of workers.
    """

    def __init__(self, workers: int) -> None:
        self.workers = validate.count(minimum=0, workers=workers)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, file: ListedFile, *, channels: int, size: Size) -> Callable[[], Pixels | None]:
        """Start ``decode_listed``; calling the result waits for it, and raises ``WorkerDied`` if its process ends."""
        if not self.workers:
            return partial(decode_listed, file, channels=channels, size=size)
        if not self._processes:
            self._processes = [_start_process() for _ in range(self.workers)]
            self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="lehr-decoder")
            self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
            for process in self._processes:
                self._idle.put(process)
            self._end = weakref.finalize(self, _end_processes, self._threads, self._processes)
        decoded = self._threads.submit(_decode_on_idle, self._idle, file, channels, size)

        def wait() -> Pixels | None:
            try:
                return decoded.result()
            except WorkerDied:
                self.close()
                raise

        return wait

    def pids(self) -> tuple[int, ...]:
        """Return the ids of the running processes."""
        return tuple(process.pid for process in self._processes)

    def close(self) -> None:
        """End the processes. The next request starts new ones."""
        if self._processes:
            self._end()
            self._processes = []


def _decode_on_idle(
    idle: SimpleQueue[subprocess.Popen[bytes]], file: ListedFile, channels: int, size: Size
) -> Pixels | None:
    request = [os.fsdecode(file.path), file.num_bytes, file.changed_at, file.digest.hex(), channels, size]
    num_bytes = channels * size[0] * size[1]
    process = idle.get()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        (state,) = _STATE.unpack(process.stdout.read(_STATE.size))
        pixels = process.stdout.read(num_bytes if state == IMAGE else 0)
    except (BrokenPipeError, struct.error) as error:
        raise WorkerDied from error
    finally:
        idle.put(process)
    if state > 0:
        raise OSError(state, _HAS_CHANGED if state == errno.ESTALE else os.strerror(state))
    if state == NOT_AN_IMAGE:
        return None
    if len(pixels) != num_bytes:
        raise WorkerDied
    return np.frombuffer(pixels, np.uint8).reshape(channels, *size)


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process is interrupted, and ends this one
    for line in sys.stdin.buffer:
        path, num_bytes, changed_at, digest, channels, size = json.loads(line)
        file = ListedFile(os.fsencode(path), num_bytes, changed_at, bytes.fromhex(digest))
        try:
            pixels = decode_listed(file, channels=channels, size=size)
        except OSError as error:
            answer = _STATE.pack(error.errno or errno.EIO)
        else:
            answer = _STATE.pack(NOT_AN_IMAGE) if pixels is None else _STATE.pack(IMAGE) + pixels.tobytes()
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


def _start_process() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(map(os.path.abspath, sys.path)))  # it must find the modules of this process
    command = (sys.executable, "-P", "-m", "lehr.data.decoding")
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _end_processes(threads: ThreadPoolExecutor, processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()  # it has no state, and the thread that waits for it sees its end
    threads.shutdown(wait=False, cancel_futures=True)  # this may run in one of them
    for process in processes:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # the unsent rest of a request
                if pipe is not None:
                    pipe.close()


if __name__ == "__main__":
    main()
