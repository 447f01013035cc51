"""Every planted bug is caught by every test named in its entry, and the table of the docs is up to date."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.privacy.planted_bugs import BUGS, EVERY, NOISE, table
from tests.privacy.planting import ROOT, SLOW_TO_IMPORT, Planted, Rotten, edited

FEW = [min(bugs, key=lambda bug: len(bug.caught_by)).name for bugs in EVERY.values()]  # one of every part


@pytest.mark.parametrize(
    "bugs",
    [pytest.param(FEW, marks=pytest.mark.slow, id="few"), pytest.param(list(BUGS), marks=pytest.mark.whole, id="all")],
)
def test_every_planted_bug_is_caught(bugs: list[str]) -> None:
    script = [sys.executable, "-m", "tests.privacy.planted_bugs", *bugs]
    found = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(": caught by ") == len(bugs)
    assert found.stdout.count(": as expected ") == 3  # the controls


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_every_edit_fits_the_package(bug: Planted) -> None:
    text = (ROOT / "src" / "lehr" / bug.where).read_text(encoding="utf-8")
    assert edited(bug, text) != text
    for test in bug.caught_by:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert bug.caught_by


@pytest.mark.parametrize("edit", [("never written", "x"), ("noise_std", "x"), (NOISE.edits[0][0], "no (Python")])
def test_an_edit_that_does_not_fit_is_an_error(edit: tuple[str, str]) -> None:
    text = (ROOT / "src" / "lehr" / NOISE.where).read_text(encoding="utf-8")
    with pytest.raises(Rotten, match="noise-halved"):
        edited(replace(NOISE, edits=(edit,)), text)


def test_the_table_is_complete_and_in_the_docs() -> None:
    assert all(EVERY.values())
    assert len(BUGS) == sum(map(len, EVERY.values())) >= 109
    assert table() in (ROOT / "docs" / "planted_bugs.md").read_text(encoding="utf-8")


def test_nothing_of_the_package_is_imported_before_a_fork() -> None:
    assert not [name for name in SLOW_TO_IMPORT if name.startswith("lehr")]
