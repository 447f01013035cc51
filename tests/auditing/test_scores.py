"""What may be a score, and what may not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lehr.auditing.scores import Scores, pooled
from lehr.errors import InvalidValue


def test_both_sides_are_kept_as_double_precision_rows() -> None:
    scores = Scores(members=[1, 2], others=np.array([0.5], dtype=np.float32))  # type: ignore[arg-type]
    assert scores.members.dtype == scores.others.dtype == np.float64
    assert scores.members.tolist() == [1.0, 2.0]
    assert scores.others.tolist() == [0.5]


def test_what_is_changed_afterwards_is_not_in_the_scores() -> None:
    given = np.zeros(3)
    scores = Scores(members=given, others=given)
    given[0] = 1
    assert scores.members.tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="read-only"):
        scores.members[0] = 1


def test_infinite_scores_are_allowed() -> None:
    assert Scores(members=np.array([math.inf]), others=np.array([-math.inf])).members.tolist() == [math.inf]


@pytest.mark.parametrize("bad", [[], [[1.0]], 1.0, [math.nan], [0.0, math.nan], ["a"], [None, "b"], [10**400]])
@pytest.mark.parametrize("side", ["members", "others"])
def test_anything_but_a_row_of_numbers_is_refused_by_the_name_of_its_side(side: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{side} must be"):
        Scores(**{"members": [1.0], "others": [0.0], side: bad})  # type: ignore[arg-type]


def test_the_scores_of_several_games_are_put_one_after_another() -> None:
    one, other = Scores(np.array([1.0]), np.array([2.0, 3.0])), Scores(np.array([4.0]), np.array([5.0]))
    both = pooled([one, other])
    assert (both.members.tolist(), both.others.tolist()) == ([1.0, 4.0], [2.0, 3.0, 5.0])
