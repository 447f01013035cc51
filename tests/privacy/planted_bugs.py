"""Bugs that would break the guarantee (``planted_bugs.toml``), each planted into a copy of the package and tested.

    python -m tests.privacy.planted_bugs                  all bugs
    python -m tests.privacy.planted_bugs NAME ...         these bugs
    python -m tests.privacy.planted_bugs --list           their names
    python -m tests.privacy.planted_bugs --table          the table of docs/planted_bugs.md
    python -m tests.privacy.planted_bugs --against attacks/test_step_attack.py [NAME ...]
                                                          which bugs other tests would catch

A bug is caught if every test in its ``caught_by`` fails. It is checked first that they all pass without it, that a
change which does no harm is not caught, and that a change which breaks the program does not count.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.privacy.planting import Copy, Planted, Rotten, Verdict, prepare

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EVERY = {group: tuple(Planted.from_table(table) for table in tables) for group, tables in _TABLES.items()}
BUGS = {bug.name: bug for bugs in EVERY.values() for bug in bugs}
NOISE = BUGS["noise-halved"]


def controls() -> Iterator[tuple[Planted, bool]]:
    """Changes that no test may catch, and whether each breaks the program."""
    [(old, _)] = NOISE.edits
    tested = replace(NOISE, caught_by=NOISE.caught_by[:1])
    yield replace(tested, name="harmless", edits=((old, f"{old.rstrip()}  # as it was\n"),)), False
    yield replace(tested, name="nonsense", edits=((old, old.replace("with_rounding", "with_nobody")),)), True
    # Labels that meet the views of another record: the engine detects that, and runs record by record.
    labels = ("leaf.repeat_interleave(views, 0)", "leaf.repeat(views, *[1] * (leaf.dim() - 1))")
    yield (
        replace(
            NOISE,
            name="mixed labels",
            where="gradients/batches.py",
            edits=(labels,),
            caught_by=("contracts/test_engines.py::test_a_loop_over_records_agrees_and_the_model_is_left_as_it_was",),
        ),
        False,
    )


def table() -> str:
    """Every bug with the tests that catch it, as Markdown."""
    rows = ["| planted | what it does | why that breaks privacy | caught by |", "|---|---|---|---|"]
    for group, bugs in EVERY.items():
        rows.append(f"| **{group}** | | | |")
        for bug in bugs:
            tests = "<br>".join(f"`{test}`" for test in bug.caught_by)
            rows.append(f"| `{bug.name}`<br>in `{bug.where}` | {bug.does} | {bug.breaks} | {tests} |")
    return "\n".join(rows) + "\n"


def try_all(names: Iterable[str], *, against: str | None = None) -> bool:
    """Try the bugs and print the results. Returns whether all were caught, or with ``against`` could be tried."""
    bugs = [BUGS[name] for name in names]
    prepare()
    with Copy.made() as copy:
        before = time.monotonic()
        needed = {test for bug in (*bugs, *(bug for bug, _ in controls())) for test in bug.caught_by}
        passing = copy.run(needed if against is None else {against}, keeps_bytecode=True)
        if passing.failed or passing.trouble:
            _print("without any bug", f"FAILED {' '.join(sorted(passing.failed))} {passing.trouble}", since=before)
            return False
        _print("without any bug", f"{len(passing.passed)} tests pass", since=before)
        if against is None:
            for control, is_trouble in controls():
                before, verdict = time.monotonic(), copy.tried(control)
                is_right = not verdict.failed and bool(verdict.trouble) == is_trouble
                _print(control.name, "as expected" if is_right else f"FAILED {verdict}", since=before)
                if not is_right:
                    return False
            missed = [bug for bug in bugs if not _is_caught(copy, bug)]
            return not missed
        for bug in bugs:
            before = time.monotonic()
            verdict = copy.tried(bug, [against])
            _print(bug.name, verdict.trouble or " ".join(sorted(verdict.failed)) or "not caught", since=before)
        return True


def _is_caught(copy: Copy, bug: Planted) -> bool:
    before = time.monotonic()
    verdict = copy.tried(bug)
    _print(bug.name, _in_words(bug, verdict), since=before)
    return verdict.failed == set(bug.caught_by) and not verdict.trouble


def _in_words(bug: Planted, verdict: Verdict) -> str:
    if verdict.trouble:
        return f"NO TRY: {verdict.trouble}"
    passed = sorted(set(bug.caught_by) - verdict.failed)
    if not verdict.failed:
        return f"NOT CAUGHT by {' '.join(passed)}"
    caught = f"caught by {' '.join(test.rpartition('::')[2] for test in bug.caught_by if test in verdict.failed)}"
    return f"{caught}, but NOT by {' '.join(passed)}" if passed else caught


def _print(what: str, words: str, *, since: float) -> None:
    sys.stdout.write(f"{what}: {words} ({time.monotonic() - since:.1f} s)\n")
    sys.stdout.flush()


def main(words: Sequence[str]) -> int:
    """The script; its exit status is 1 where a bug was not caught."""
    if list(words) == ["--table"]:
        sys.stdout.write(table())
        return 0
    if list(words) == ["--list"]:
        sys.stdout.write("".join(f"{bug.name}: {bug.does}\n" for bug in BUGS.values()))
        return 0
    against, words = (words[1], words[2:]) if words[:1] == ["--against"] and len(words) > 1 else (None, words)
    unknown = sorted(set(words) - set(BUGS))
    if unknown:
        sys.stderr.write(f"no such bug: {', '.join(unknown)}; there are {', '.join(BUGS)}\n")
        return 2
    try:
        return 0 if try_all(words or BUGS, against=against) else 1
    except Rotten as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
