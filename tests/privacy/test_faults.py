"""A kill, an interrupt or a full disk at any file operation or SQL statement loses nothing and breaks nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.privacy.faults import FAULTS, FULL_ONCE, Story, Teller, places
from tests.privacy.planting import ROOT
from tests.sizes import sizes


@pytest.mark.parametrize("count", sizes(16, whole=1000))
def test_no_fault_at_any_operation_does_harm(count: int) -> None:
    script = [sys.executable, "-m", "tests.privacy.faults", str(count)]
    found = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert ", 0 did harm" in found.stdout


def told(tmp_path: Path, story: Story) -> tuple[Teller, int]:
    (tmp_path / "budget").touch()
    teller = Teller(story, tmp_path)
    ended, operations = teller.told(teller.new_folder("undisturbed"))
    assert ended == "done"
    return teller, operations


def nothing(folder: Path, released: int) -> None:
    """There is nothing to look at."""


def test_a_file_that_is_written_in_place_is_found_torn_and_a_traceback_is_found(tmp_path: Path) -> None:
    def tell() -> None:
        if not os.path.exists("file"):
            with open("file", "w") as file:
                file.write("whole")

    story = Story(tell=tell, holds=nothing, ends=nothing, leaves=("file",))
    teller, operations = told(tmp_path, story)
    found = {fault: [teller.disturbed(0, at=at, fault=fault) for at in range(1, operations + 1)] for fault in FAULTS}
    assert [bool(harm) for harm in found["kill"]] == [False, True, True]  # creation, and either half of the write
    assert all("OSError: [Errno 28]" in harm for harm in found[FULL_ONCE])


def test_faults_are_spread_over_all_operations_and_kinds() -> None:
    assert sorted(places(10**6, 5)) == sorted((at, fault) for at in range(1, 6) for fault in FAULTS)
    some = places(40, 400)
    assert len(set(some)) == 40
    assert {fault for _, fault in some} == set(FAULTS)
    assert len({at // 40 for at, _ in some}) >= 10
