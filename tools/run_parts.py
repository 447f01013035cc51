"""Runs the checks of ``make test``, all of them even if one fails, and ends with a table.

``run_parts.py types tests`` runs only these parts. The exit status is 1 if any part failed. Parts in the background run
beside the tests, one after another, and their output is printed at the end.
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
    """One check: its name, its title in the table, and its command, a script beside this Python."""

    name: str
    title: str
    command: tuple[str, ...]
    by_default: bool = True
    in_background: bool = False


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one part went."""

    part: Part
    passed: bool
    minutes: float
    output: str = ""


# A process for each core; the tests of one file stay together, since they share what they have compiled, and files
# are taken in the order that tests/conftest.py gives them.
PYTEST = ("pytest", "-q", "-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=15")
EXAMPLES = ("src", "experiments", "docs", "README.md", "CONTRIBUTING.md")
SITE = ("python", "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", "build/site")
QUICK, WHOLE = (*PYTEST, "-m", "not slow and not whole", "tests"), (*PYTEST, "-m", "whole", "tests")
PARTS = (
    Part(name="types", title="mypy --strict", command=("mypy", "--strict"), in_background=True),
    Part(name="docs", title="sphinx -W", command=SITE, in_background=True),
    Part(name="style", title="ruff check", command=("ruff", "check", ".")),
    Part(name="formatting", title="ruff format --check", command=("ruff", "format", "--check", ".")),
    Part(name="imports", title="lint-imports", command=("lint-imports", "--no-cache", "--no-logo")),
    # One session for all of them, since every session imports all that is tested into every process.
    Part(name="tests", title="pytest, examples too", command=(*PYTEST, "-m", "not whole", "tests", *EXAMPLES)),
    Part(name="quick", title="pytest, not slow ones", command=QUICK, by_default=False),
    Part(name="whole", title="pytest, at full size", command=WHOLE, by_default=False),
)
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # for each process that runs tests: more threads would only wait for one another
    # Some containers forbid it. Then every process that a test starts compiles all modules of torch again.
    "PYTHONDONTWRITEBYTECODE": "",
}


def choose(names: Iterable[str], *, parts: tuple[Part, ...] = PARTS) -> tuple[Part, ...]:
    """The parts of these names, in their usual order; without names, those that every change must pass."""
    wanted = set(names)
    unknown = wanted - {part.name for part in parts}
    if unknown:
        raise SystemExit(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in parts)}")
    return tuple(part for part in parts if part.name in wanted or (not wanted and part.by_default))


def run(part: Part) -> Outcome:
    """Run one part; its output goes to the terminal, or into the outcome where it runs in the background."""
    if not part.in_background:
        print(f"\n=== {part.name}: {part.title}", flush=True)
    began = time.monotonic()
    program, *arguments = part.command
    finished = subprocess.run(
        [SCRIPTS / program, *arguments],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if part.in_background else None,
        stderr=subprocess.STDOUT if part.in_background else None,
        check=False,
        text=True,
    )
    minutes = (time.monotonic() - began) / 60
    return Outcome(part=part, passed=finished.returncode == 0, minutes=minutes, output=finished.stdout or "")


def run_all(parts: Collection[Part]) -> list[Outcome]:
    """Run the parts, those in the background beside the others."""
    with ThreadPoolExecutor(max_workers=1) as one_core:
        background = [one_core.submit(run, part) for part in parts if part.in_background]
        outcomes = [run(part) for part in parts if not part.in_background]
        ended = [each.result() for each in background]
    for outcome in ended:
        print(f"\n=== {outcome.part.name}: {outcome.part.title}\n{outcome.output}", end="", flush=True)
    return [*ended, *outcomes]


def table(outcomes: Collection[Outcome], *, minutes: float) -> str:
    """How each part went, and after how many minutes all of them had ended."""
    results = [(f"{each.part.name} ({each.part.title})", each.passed, each.minutes) for each in outcomes]
    results.append(("together", all(each.passed for each in outcomes), minutes))
    width = max(len(name) for name, _, _ in results)
    lines = [f"{name:{width}} | {'passed' if passed else 'FAILED'} | {spent:.1f}" for name, passed, spent in results]
    head = f"{'part':{width}} | result | minutes"
    return "\n".join([head, "-" * len(head), *lines])


def main(names: Iterable[str], *, parts: tuple[Part, ...] = PARTS) -> int:
    """Run the chosen parts, print the table, and return the exit status."""
    began = time.monotonic()
    outcomes = run_all(choose(names, parts=parts))
    print("\n" + table(outcomes, minutes=(time.monotonic() - began) / 60), flush=True)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
