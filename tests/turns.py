"""Long tests that take turns: every change runs a third of them, and which third follows from its commit.

``@pytest.mark.in_turn`` gives the cases of a test to the turns one after another; ``@pytest.mark.in_turn(2)`` gives
all of them to that one. pytest runs a turn where ``--turn`` names it and all of them otherwise, as ``make whole`` does.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

TURNS = 3
ROOT = Path(__file__).parents[1]


def turn_named(word: str, *, root: Path = ROOT) -> int:
    """A turn by its number, or that of the commit; where there is none, as in an archive, it is the first."""
    if word != "commit":
        return int(word)
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return int(found.stdout, 16) % TURNS if found.returncode == 0 else 0


def waiting(items: Sequence[pytest.Item], turn: int) -> list[pytest.Item]:
    """The tests whose turn it is not. Two neighbouring rows of a table of cases begin at different turns."""
    seen: Counter[str] = Counter()
    left_out = []
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        place = mark.args[0] if mark.args else seen[name] + seen[name] // TURNS
        seen[name] += 1
        if place % TURNS != turn:
            left_out.append(item)
    return left_out


def slow_files_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Files with long tests before the others, so that no process works alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    return sorted(items, key=lambda item: item.path not in slow)
