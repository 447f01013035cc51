"""Killed at any moment, a ledger or a budget never shows less than was used."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.events import Adjacency, Event, Repeated, counted, together
from lehr.accounting.filter import RenyiFilter
from lehr.accounting.ledger import Ledger
from lehr.errors import StoreError
from lehr.planning.budget import Budget
from tests.privacy.spending import (
    BLOCK,
    FULL,
    LIMITS,
    STEP,
    Spenders,
    create_until_killed,
    new_budget,
    new_ledger,
    record_until_killed,
    spend_until_killed,
    use_first_until_killed,
)

KILLS = 200
KILLS_PER_FILE = 20
MOST_LINES = 10
LONGEST_WAIT_S = 0.008  # a few commits


def kill_at_a_random_moment(
    script: Spenders, job: Any, path: Path, process: str, chance: random.Random
) -> list[dict[str, Any]]:
    """Return what the process had written when it was killed."""
    [process_id] = script.start(job, path, processes=[process])
    lines = script.heard(chance.randrange(MOST_LINES))
    time.sleep(chance.uniform(0, LONGEST_WAIT_S))
    os.kill(process_id, signal.SIGKILL)
    return lines + script.said()


@pytest.mark.slow
def test_kills_detect_a_run_that_uses_a_value_before_it_is_recorded(tmp_path: Path, script: Spenders) -> None:
    """A kill that falls into the write to the disk shows nothing, and on a busy machine most of them do."""
    path, chance, used, charged = tmp_path / "ledger", random.Random(4), 0, 0
    new_ledger(path, steps=10**6).close()
    for kill in range(KILLS):
        lines = kill_at_a_random_moment(script, use_first_until_killed, path, str(kill), chance)
        used += sum(line["recorded"] for line in lines)
        with Ledger.open(path) as ledger:
            charged = steps(ledger.charged())
        if charged < used:
            break
    assert charged < used


def steps(event: Event) -> int:
    return counted(event).get(STEP, 0)


@pytest.mark.slow
def test_a_killed_runs_ledger_never_shows_less_than_was_used(tmp_path: Path, script: Spenders) -> None:
    chance, died_between, plan = random.Random(1), 0, 10**6
    for file in range(KILLS // KILLS_PER_FILE):
        path, used, before = tmp_path / f"{file}.ledger", 0, 0
        new_ledger(path, steps=plan).close()
        for kill in range(KILLS_PER_FILE):
            lines = kill_at_a_random_moment(script, record_until_killed, path, str(kill), chance)
            used += sum(line["recorded"] for line in lines)
            with Ledger.open(path) as ledger:
                charged = steps(ledger.charged())
            assert used <= charged <= plan
            # At most the block that was in the making is charged beyond what the process said of itself.
            assert charged - before - sum(line["recorded"] for line in lines) in (0, BLOCK)
            died_between += charged - before != sum(line["recorded"] for line in lines)
            before = charged
        assert used > 0
    assert died_between > 0, "no process was killed between a record on the disk and its use"


@pytest.mark.slow
def test_a_killed_runs_budget_never_shows_less_than_was_used(tmp_path: Path, script: Spenders) -> None:
    chance, hot, full = random.Random(2), 0, 0
    for file in range(KILLS // KILLS_PER_FILE):
        path, used = tmp_path / f"{file}.budget", Counter[str]()
        settled: set[str] = set()
        new_budget(path, epsilon=LIMITS[file % 2]).close()
        if file % 2:
            leave_little(path)
        for kill in range(KILLS_PER_FILE):
            lines = kill_at_a_random_moment(script, spend_until_killed, path, str(kill), chance)
            hot += path.with_name(path.name + "-journal").exists()
            full += FULL in lines
            for line in lines:
                used[line.get("run", "")] += line.get("used", 0)
                settled |= {line["settled"]} if "settled" in line else set()
            assert_nothing_lost(path, used, settled)
        assert used.total() > 0
    assert full > 0, "no process met the limit"
    assert hot > 0, "no process was killed inside a commit"


def leave_little(path: Path) -> None:
    """Every killed process leaves a reservation of 15 steps behind, so twenty of them meet this limit."""
    with Budget.open(path) as budget:
        budget.reserve(Repeated(STEP, budget.largest_steps(STEP) - 150), run="an earlier one")


def assert_nothing_lost(path: Path, used: Counter[str], settled: set[str]) -> None:
    with Budget.open(path) as budget:
        status = budget.status()
    runs = {run.run: run for run in status.runs}
    for run, count in used.items():
        assert not count or count <= steps(runs[run].used) <= steps(runs[run].charged)
    assert settled <= {run.run for run in status.runs if run.is_settled}
    assert status.epsilon_spent <= status.epsilon
    chosen = RenyiFilter(
        epsilon=status.epsilon, delta=status.delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE, orders=status.orders
    )
    charged = together(*(run.charged for run in status.runs))
    assert chosen.admits(charged)
    assert used.total() <= steps(charged)


@pytest.mark.slow
def test_a_file_whose_creation_was_killed_can_be_created_again(tmp_path: Path, script: Spenders) -> None:
    chance, whole = random.Random(3), 0
    for kill in range(KILLS // 4):
        lines = kill_at_a_random_moment(script, create_until_killed, tmp_path / "new", str(kill), chance)
        created = [line["created"] for line in lines if "created" in line]
        whole += len(created)
        for path in created:
            open_any(path)
        for path in [line["creating"] for line in lines if "creating" in line][-1] if lines else []:
            open_or_create(path)
    assert whole > KILLS // 4


def open_any(path: str) -> None:
    (Budget if path.endswith("budget") else Ledger).open(path).close()


def open_or_create(path: str) -> None:
    try:
        open_any(path)
    except StoreError:
        (new_budget(path) if path.endswith("budget") else new_ledger(path, steps=100)).close()
        open_any(path)
