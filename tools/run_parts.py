"""Runs the checks of ``make test``, all of them even if one fails, and ends with a table.

``run_parts.py types tests`` runs only the parts named. The exit status is 1 if any part failed. What keeps one core
busy runs beside the tests, one such part after another, and what it says is printed when they are through.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True, kw_only=True)
class Part:
    """One check: the word that picks it, what the table says about it, and its command, a script beside this Python."""

    word: str
    says: str
    command: tuple[str, ...]
    by_default: bool = True
    beside: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one part went."""

    part: Part
    passed: bool
    minutes: float
    said: str = ""


# A process for each core; the tests of one file stay together, since they share what they have compiled, and files
# are taken in the order that tests/conftest.py gives them.
PYTEST = ("pytest", "-q", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=15")
EXAMPLES = ("src", "experiments", "docs", "README.md", "CONTRIBUTING.md")
SITE = ("python", "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", "build/site")
PARTS = (
    Part(word="types", says="mypy --strict", command=("mypy", "--strict"), beside=True),
    Part(word="docs", says="sphinx -W", command=SITE, beside=True),
    Part(word="style", says="ruff check", command=("ruff", "check", ".")),
    Part(word="formatting", says="ruff format --check", command=("ruff", "format", "--check", ".")),
    Part(word="imports", says="lint-imports", command=("lint-imports", "--no-cache", "--no-logo")),
    # One session for all of them, since every session imports all that is tested into every process.
    Part(word="tests", says="pytest, examples too", command=(*PYTEST, "-m", "not whole", "tests", *EXAMPLES)),
    Part(
        word="quick",
        says="pytest, not slow ones",
        command=(*PYTEST, "-m", "not slow and not whole", "tests"),
        by_default=False,
    ),
    Part(
        word="whole",
        says="pytest, at full size",
        command=(*PYTEST, "-m", "whole", "tests"),
        by_default=False,
    ),
)
# One thread for each process that runs tests: more would only wait for one another.
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def chosen(words: Iterable[str], *, parts: tuple[Part, ...] = PARTS) -> tuple[Part, ...]:
    """The parts with these words, in their usual order; where no word is given, those that every change must pass."""
    wanted = set(words)
    unknown = wanted - {part.word for part in parts}
    if unknown:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(p.word for p in parts)}")
    return tuple(part for part in parts if part.word in wanted or (not wanted and part.by_default))


def run(part: Part) -> Outcome:
    """Run one part, its output going straight to the terminal, or there at its end where it runs beside others."""
    if not part.beside:
        print(f"\n=== {part.word}: {part.says}", flush=True)
    begun = time.monotonic()
    program, *arguments = part.command
    finished = subprocess.run(
        [SCRIPTS / program, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if part.beside else None,
        stderr=subprocess.STDOUT if part.beside else None,
        check=False,
        text=True,
    )
    minutes = (time.monotonic() - begun) / 60
    return Outcome(part=part, passed=finished.returncode == 0, minutes=minutes, said=finished.stdout or "")


def run_all(parts: Iterable[Part]) -> list[Outcome]:
    """Run the parts, those that run beside the others too."""
    parts = tuple(parts)
    with ThreadPoolExecutor(max_workers=1) as one_core:
        beside = [one_core.submit(run, part) for part in parts if part.beside]
        outcomes = [run(part) for part in parts if not part.beside]
        ended = [waited.result() for waited in beside]
    for outcome in ended:
        print(f"\n=== {outcome.part.word}: {outcome.part.says}\n{outcome.said}", end="", flush=True)
    return [*ended, *outcomes]


def table(outcomes: Collection[Outcome], *, minutes: float) -> str:
    """What is printed at the end: how each part went, and after how many minutes all of them had ended."""
    rows = [("part", "result", "minutes")]
    rows += [_row(f"{o.part.word} ({o.part.says})", passed=o.passed, minutes=o.minutes) for o in outcomes]
    rows += [_row("together", passed=all(o.passed for o in outcomes), minutes=minutes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main(words: Iterable[str], *, parts: tuple[Part, ...] = PARTS) -> int:
    """Run the chosen parts, print the table, and return the exit status."""
    begun = time.monotonic()
    outcomes = run_all(chosen(words, parts=parts))
    print("\n" + table(outcomes, minutes=(time.monotonic() - begun) / 60), flush=True)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _row(name: str, *, passed: bool, minutes: float) -> tuple[str, str, str]:
    return name, "passed" if passed else "FAILED", f"{minutes:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
