"""Whatever a file holds, its reader accepts it or raises an error of Lehr; it never hangs or counts too little."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path

import pytest

from lehr.errors import StoreError
from tests.fuzzing import running, seeds
from tests.fuzzing.readers import Reader, Stopped, facts, readers
from tests.fuzzing.running import prepare, run
from tests.sizes import sizes

WHOLE = 20_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    with chdir(folder):
        seeds.write(folder)
    return folder


@pytest.mark.slow
def test_every_reader_takes_the_files_as_they_were_written(written: Path, tmp_path: Path) -> None:
    with chdir(written):
        known = facts()
    for reader in readers(known):
        prepare(reader, written, tmp_path / "scratch")
        with chdir(tmp_path / "scratch"), suppress(Stopped, StoreError if reader.name == "known data" else Stopped):
            code = reader.read()
            assert not isinstance(code, int) or code == 0, reader


@pytest.mark.parametrize("inputs", sizes(300, whole=WHOLE))
def test_mutated_files_are_read_or_refused(written: Path, tmp_path: Path, inputs: int) -> None:
    with chdir(written):
        known = facts()
    numbers = range(0, WHOLE, WHOLE // inputs)
    found = run(readers(known), seeds=written, scratch=tmp_path / "scratch", numbers=numbers)
    assert not found, "\n\n".join(f"input {each.number}: {each.reader}, {each.mutation}: {each.what}" for each in found)


def test_what_must_not_happen_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fuzzer that finds nothing must be one that can."""
    (tmp_path / "seeds").mkdir()
    (tmp_path / "seeds" / "file").write_text("1234")
    faults: dict[str, Callable[[], object]] = {
        "ValueError": lambda: int("x"),
        "MemoryError": lambda: bytearray(1024**5),
        "it takes": lambda: bytearray(b"x") * (700 * 1024**2),
        "it hangs": lambda: time.sleep(100),
        "the process died": lambda: os._exit(3),
    }
    for fault, does in faults.items():
        monkeypatch.setattr(running, "MOST_WAITING", 1.0 if fault == "it hangs" else 90.0)
        reader = Reader(fault, "file", "bytes", does)
        found = run([reader], seeds=tmp_path / "seeds", scratch=tmp_path / "scratch", numbers=[0, 1])
        assert len(found) == 2, fault
        assert all(fault in each.what for each in found), found
