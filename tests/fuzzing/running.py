"""Runs many mutated inputs in child processes, with little memory and little time for each."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import shutil
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from lehr.errors import LehrError
from tests.fuzzing.mutations import NO_FILES, mutate, put_in_its_place
from tests.fuzzing.readers import Reader

MOST_SECONDS = 10.0  # of the processor's time, for one input
MOST_WAITING = 90.0  # seconds, after which an input hangs
MOST_ADDRESSES = 4 * 1024**3  # bytes beyond what the process has; threads and mapped files take many and use few
MOST_MEMORY = 512 * 1024  # kilobytes that one input may take
_ENDED = "ended"


class Finding(NamedTuple):
    """An input that was not handled as it should be, by its number, which reproduces it."""

    number: int
    reader: str
    mutation: str
    what: str


def run(readers: Sequence[Reader], *, seeds: Path, scratch: Path, numbers: Sequence[int]) -> list[Finding]:
    """The findings among the inputs with these numbers. What an input is follows from its number alone."""
    fork = multiprocessing.get_context("fork")
    findings: list[Finding] = []
    done = 0
    while done < len(numbers):
        here, there = fork.Pipe(duplex=False)
        child = fork.Process(target=_work, args=(readers, seeds, scratch, numbers[done:], there))
        child.start()
        there.close()
        current = Finding(numbers[done], "unknown", "unknown", "the process died")
        try:
            while done < len(numbers):
                if not here.poll(MOST_WAITING):
                    raise TimeoutError
                received = here.recv()
                if received == _ENDED:
                    done += 1
                elif received.what:
                    findings.append(received)
                else:
                    current = received
        except (EOFError, TimeoutError) as error:
            hung = isinstance(error, TimeoutError)
            findings.append(current._replace(what="it hangs" if hung else "the process died"))
            done += 1
        child.kill()
        child.join()
        here.close()
    return findings


def _work(readers: Sequence[Reader], seeds: Path, scratch: Path, numbers: Sequence[int], report: Connection) -> None:
    torch.set_num_threads(1)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MOST_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in numbers:
            _try(readers, seeds, scratch, number, report)
            report.send(_ENDED)


def _try(readers: Sequence[Reader], seeds: Path, scratch: Path, number: int, report: Connection) -> None:
    random = Random(number)
    is_no_file = number < len(readers) * len(NO_FILES)  # each of them for each reader, before the random mutations
    if is_no_file:
        reader = readers[number // len(NO_FILES)]
    else:
        reader = random.choices(readers, [each.often for each in readers])[0]
    prepare(reader, seeds, scratch)
    path = scratch / reader.file
    changed = (
        put_in_its_place(path, NO_FILES[number % len(NO_FILES)]) if is_no_file else mutate(path, reader.kind, random)
    )
    finding = Finding(number, f"{reader.name} ({reader.file})", changed, "")
    report.send(finding)
    Path("/proc/self/clear_refs").write_text("5")  # the most memory that was used is measured from here on
    began, used = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wrong = _wrong(reader, scratch)
    if not wrong and (seconds := time.process_time() - began) > MOST_SECONDS:
        wrong = f"it takes {seconds:.0f} s"
    if not wrong and (more := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) > MOST_MEMORY:
        wrong = f"it takes {more // 1024} MiB"
    if wrong:
        report.send(finding._replace(what=wrong))


def prepare(reader: Reader, seeds: Path, scratch: Path) -> None:
    """Copy what the reader needs into an empty folder."""
    shutil.rmtree(scratch, ignore_errors=True)
    for name in (*reader.needs, reader.file):
        target = scratch / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (seeds / name).is_dir() else shutil.copy2)(seeds / name, target)


def _wrong(reader: Reader, scratch: Path) -> str:
    """What the reader did that it must not do; nothing where it read the file or refused it."""
    output = io.StringIO()
    try:
        with chdir(scratch), redirect_stdout(output), redirect_stderr(output):
            reader.read()
    except LehrError:
        pass
    except BaseException:
        return traceback.format_exc(limit=-4)
    return ""
