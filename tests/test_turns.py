from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.turns import TURNS, slow_files_first, turn_named, waiting


def case(name: str, *marks: pytest.MarkDecorator, file: str = "test_a.py") -> Any:
    """As much of a collected test as is looked at."""
    found = {mark.name: mark.mark for mark in marks}
    return SimpleNamespace(nodeid=f"{file}::{name}", path=Path(file), get_closest_marker=found.get)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 21])
def test_every_case_has_its_turn_once_and_turns_are_equally_long_but_for_one(count: int) -> None:
    cases = [case(f"test_a[{number}]", pytest.mark.in_turn) for number in range(count)]
    runs = [len(cases) - len(waiting(cases, turn)) for turn in range(TURNS)]
    assert sum(runs) == count
    assert max(runs) - min(runs) <= 1
    seen = Counter(id(item) for turn in range(TURNS) for item in cases if item not in waiting(cases, turn))
    assert set(seen.values()) == {1}


def test_of_a_table_with_a_turns_columns_every_turn_has_some_of_each_column() -> None:
    cases = [case(f"test_a[{row}-{column}]", pytest.mark.in_turn) for row in range(3) for column in range(TURNS)]
    for turn in range(TURNS):
        left = [item.nodeid for item in cases if item not in waiting(cases, turn)]
        assert {name.partition("-")[2] for name in left} == {f"{column}]" for column in range(TURNS)}


def test_a_turn_that_is_named_has_all_cases_and_what_takes_no_turns_never_waits() -> None:
    named = [case(f"test_a[{number}]", pytest.mark.in_turn(1)) for number in range(4)]
    assert [len(waiting([*named, case("test_b")], turn)) for turn in range(TURNS)] == [4, 0, 4]


def test_files_with_slow_tests_come_first_and_keep_their_order() -> None:
    quick, slow = case("test_a"), case("test_b", pytest.mark.slow, file="test_b.py")
    beside, last = case("test_c", file="test_b.py"), case("test_d")
    assert slow_files_first([quick, beside, slow, last]) == [beside, slow, quick, last]


def test_the_turn_of_a_commit_is_always_the_same_and_without_one_it_is_the_first(tmp_path: Path) -> None:
    assert turn_named("2") == 2
    assert turn_named("commit") == turn_named("commit") in range(TURNS)
    assert turn_named("commit", root=tmp_path) == 0
