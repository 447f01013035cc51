"""A worker process: reads the names of image files from its standard input, writes their pixels to its output.

    asked      how many files, the side, the channels; of each file: its size, its time of change, its name, its hash
    answered   of each file: READ and the pixels, NOT_AN_IMAGE, or NOT_READ and the number of the error

It ends when its input does, so that it never outlives whoever started it. It shares no memory with anybody, has
nothing of a GPU, and reads no pickle.
"""

from __future__ import annotations

import errno
import signal
import struct
import sys
from collections.abc import Sequence
from typing import BinaryIO

from lehr.data.decoding import Listed, pixels_of_listed

READ, NOT_AN_IMAGE, NOT_READ = b"r", b"n", b"e"
HEADER = struct.Struct("<IIB")
FILE = struct.Struct("<qqIB")
ERROR = struct.Struct("<I")


def asked(files: Sequence[Listed], *, side: int, channels: int) -> bytes:
    """A question, as it is sent."""
    parts = [HEADER.pack(len(files), side, channels)]
    for file in files:
        lengths = len(file.path), len(file.digest)
        parts += [FILE.pack(file.num_bytes, file.changed_at, *lengths), file.path, file.digest]
    return b"".join(parts)


def answer(questions: BinaryIO, answers: BinaryIO) -> bool:
    """Answer one question; false where there is none any more."""
    header = questions.read(HEADER.size)
    if len(header) < HEADER.size:
        return False
    count, side, channels = HEADER.unpack(header)
    for file in [_file(questions) for _ in range(count)]:
        _answer_one(file, answers, side=side, channels=channels)
    answers.flush()
    return True


def _file(questions: BinaryIO) -> Listed:
    num_bytes, changed_at, of_path, of_digest = FILE.unpack(questions.read(FILE.size))
    return Listed(questions.read(of_path), num_bytes, changed_at, questions.read(of_digest))


def _answer_one(file: Listed, answers: BinaryIO, *, side: int, channels: int) -> None:
    try:
        pixels = pixels_of_listed(file, side=side, channels=channels)
    except OSError as error:
        answers.write(NOT_READ + ERROR.pack(error.errno or errno.EIO))
        return
    answers.write(NOT_AN_IMAGE if pixels is None else READ)
    if pixels is not None:
        answers.write(pixels.tobytes())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is interrupted, and ends it
    while answer(sys.stdin.buffer, sys.stdout.buffer):
        pass


if __name__ == "__main__":
    main()
