"""Every planted bug is caught, by every test that is said to catch it; and the script would say where one is not."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.privacy.planted_bugs import BUGS, EVERY, table
from tests.privacy.planting import ROOT, SLOW_TO_IMPORT, Planted, Rotten, edited

PAGE = ROOT / "docs" / "planted_bugs.md"
NOISE = BUGS["noise-halved"]


def in_a_process_of_its_own(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


FEW = [bugs[0].name for bugs in EVERY.values()]  # one of every part of the way


@pytest.mark.parametrize(
    "bugs",
    [pytest.param(FEW, marks=pytest.mark.slow, id="few"), pytest.param(list(BUGS), marks=pytest.mark.whole, id="all")],
)
def test_every_planted_bug_is_caught_by_all_that_are_said_to_catch_it(bugs: list[str]) -> None:
    found = in_a_process_of_its_own("-m", "tests.privacy.planted_bugs", *bugs)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(": caught by ") == len(bugs)


TRYING = """
import json, sys
from tests.privacy.planting import Copy, Planted, prepare
prepare()
with Copy.made() as copy:
    for told in json.loads(sys.argv[1]):
        edits = tuple(map(tuple, told.pop("edits")))
        verdict = copy.tried(Planted(edits=edits, does="", breaks="", **told))
        print(json.dumps([sorted(verdict.failed), bool(verdict.trouble)]))
"""


# Labels that meet the views of another record; the engine finds that out by itself, and runs record by record.
MIXED_LABELS = ("leaf.repeat_interleave(views, 0)", "leaf.repeat(views, *[1] * (leaf.dim() - 1))")
AGREES = "contracts/test_engines.py::test_a_loop_over_records_agrees_and_the_model_is_left_as_it_was"


@pytest.mark.slow
def test_a_change_that_does_no_harm_is_not_caught_and_one_that_makes_no_sense_is_no_try() -> None:
    """Otherwise a test that fails for any other reason would pass for one that catches."""
    [old] = [old for old, _ in NOISE.edits]
    tried = [
        (NOISE.where, (old, f"{old}  # as it was"), NOISE.caught_by[0]),
        (NOISE.where, (old, old.replace("with_rounding", "with_nobody")), NOISE.caught_by[0]),
        ("gradients/batches.py", MIXED_LABELS, AGREES),
    ]
    told = [{"name": "x", "where": where, "edits": [edit], "caught_by": [test]} for where, edit, test in tried]
    found = in_a_process_of_its_own("-c", TRYING, json.dumps(told))
    assert [json.loads(line) for line in found.stdout.splitlines()] == [[[], False], [[], True], [[], False]], found


@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS)
def test_what_is_planted_over_stands_in_the_package_exactly_once(bug: Planted) -> None:
    text = (ROOT / "src" / "lehr" / bug.where).read_text(encoding="utf-8")
    assert edited(bug, text) != text


@pytest.mark.parametrize("edit", [("never written", "x"), ("noise_std", "x"), (NOISE.edits[0][0], "no (Python")])
def test_a_plant_that_does_not_fit_is_an_error_and_not_a_catch(edit: tuple[str, str]) -> None:
    text = (ROOT / "src" / "lehr" / NOISE.where).read_text(encoding="utf-8")
    with pytest.raises(Rotten, match="noise-halved"):
        edited(replace(NOISE, edits=(edit,)), text)


def test_every_test_that_is_named_exists() -> None:
    for test in {test for bug in BUGS.values() for test in bug.caught_by}:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_every_part_of_the_way_has_bugs_and_each_has_its_own_name() -> None:
    assert all(EVERY.values())
    assert len(BUGS) == sum(map(len, EVERY.values())) >= 16
    assert all(bug.caught_by for bug in BUGS.values())


def test_nothing_of_the_package_is_imported_before_a_fork() -> None:
    assert not [name for name in SLOW_TO_IMPORT if name.startswith("lehr")]


def test_the_page_has_the_table_that_the_script_prints() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")
