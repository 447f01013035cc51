from __future__ import annotations

import math

import pytest

from lehr.reports.curve import Point
from lehr.reports.terminal_chart import draw

CURVE = tuple(Point(36 * index, 3 * math.sqrt(index / 199)) for index in range(200))


@pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, draw(CURVE, width=width).splitlines())) <= max(width, 40)


def test_there_are_no_colour_codes() -> None:
    assert "\x1b" not in draw(CURVE, width=80)


def test_axes_are_named_and_have_round_numbers() -> None:
    drawing = draw(CURVE, width=80)
    for words in ("ε against steps", "2,000", "4,000", "6,000", "1┤", "2┤", "3┤"):
        assert words in drawing


def test_the_curve_is_drawn_and_rises() -> None:
    columns = [line.split("│")[1] for line in draw(CURVE, width=80).splitlines() if line.count("│") == 2]
    first, last = columns[0], columns[-1]
    assert first.rstrip() != first.strip()  # the top row is filled at its right end only
    assert len(last.rstrip()) < 5


def test_a_second_chart_shows_nothing_of_the_first() -> None:
    alone = draw(CURVE, width=80)
    draw([Point(0, 0.0), Point(5, 99.0)], width=60)
    assert draw(CURVE, width=80) == alone


@pytest.mark.parametrize("epsilon, words", [(math.inf, "ε is infinite"), (0.0, "ε is 0 throughout")])
def test_where_there_is_no_curve_a_sentence_says_so(epsilon: float, words: str) -> None:
    assert words in draw([Point(0, 0.0), Point(1, epsilon)], width=80)


@pytest.mark.parametrize("epsilon", [1e-9, 0.00037, 1.0, 123456.0])
@pytest.mark.parametrize("steps", [1, 3, 10, 10_000_000])
def test_any_scale_can_be_drawn(epsilon: float, steps: int) -> None:
    assert "steps" in draw([Point(0, 0.0), Point(steps, epsilon)], width=80)
