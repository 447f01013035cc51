"""Runs the checks of ``make test`` one after another, all of them even if one fails, and ends with a table.

``run_parts.py types tests`` runs only the parts named. The exit status is 1 if any part failed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one part went."""

    part: Part
    passed: bool
    minutes: float


# A process for each core; the tests of one file stay together, since they share what they have compiled.
PYTEST = ("pytest", "-q", "-n", "auto", "--dist", "loadfile")
PARTS = (
    Part(word="style", says="ruff check", command=("ruff", "check", ".")),
    Part(word="formatting", says="ruff format --check", command=("ruff", "format", "--check", ".")),
    Part(word="types", says="mypy --strict", command=("mypy", "--strict")),
    Part(word="imports", says="lint-imports", command=("lint-imports", "--no-cache", "--no-logo")),
    Part(word="docs", says="mkdocs --strict", command=("python", "-m", "mkdocs", "build", "--strict")),
    Part(word="tests", says="pytest, but slow ones", command=(*PYTEST, "-m", "not slow and not whole", "tests")),
    Part(word="examples", says="pytest, doctests", command=(*PYTEST, "src", "docs", "README.md", "CONTRIBUTING.md")),
    Part(word="slow", says="pytest, slow ones", command=(*PYTEST, "-m", "slow", "--durations=5", "tests")),
    Part(word="whole", says="pytest, at full size", command=(*PYTEST, "-m", "whole", "tests"), by_default=False),
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
    """Run one part, its output going straight to the terminal."""
    print(f"\n=== {part.word}: {part.says}", flush=True)
    begun = time.monotonic()
    program, *arguments = part.command
    finished = subprocess.run(
        [SCRIPTS / program, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    return Outcome(part=part, passed=finished.returncode == 0, minutes=(time.monotonic() - begun) / 60)


def table(outcomes: Collection[Outcome]) -> str:
    """What is printed at the end."""
    rows = [("part", "result", "minutes")]
    rows += [_row(f"{o.part.word} ({o.part.says})", passed=o.passed, minutes=o.minutes) for o in outcomes]
    rows += [_row("together", passed=all(o.passed for o in outcomes), minutes=sum(o.minutes for o in outcomes))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [" | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def main(words: Iterable[str], *, parts: tuple[Part, ...] = PARTS) -> int:
    """Run the chosen parts, print the table, and return the exit status."""
    outcomes = [run(part) for part in chosen(words, parts=parts)]
    print("\n" + table(outcomes), flush=True)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def _row(name: str, *, passed: bool, minutes: float) -> tuple[str, str, str]:
    return name, "passed" if passed else "FAILED", f"{minutes:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
