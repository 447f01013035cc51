from __future__ import annotations

import pytest

from lehr.planning.plan import Plan
from lehr.reports.tan_chart import draw
from tests.reports.outlooks import BEHIND, CLEAR, FULL, of


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
@pytest.mark.parametrize("width", [10, 40, 80, 200])
def test_no_line_of_the_drawing_is_wider_than_the_terminal(plan: Plan, width: int) -> None:
    drawing = draw(of(plan).curves, of(plan).standing, width=width)
    assert max(map(len, drawing.splitlines()[:-1])) <= max(width, 40)
    assert "\x1b" not in drawing


@pytest.mark.parametrize("plan", [CLEAR, BEHIND, FULL])
def test_the_plan_is_marked_once_beside_its_legend(plan: Plan) -> None:
    *drawing, legend = draw(of(plan).curves, of(plan).standing, width=80).splitlines()
    assert sum(line.count("●") for line in drawing) == 1
    assert legend.startswith(" ● the plan")


def test_the_curve_falls_from_the_wall_to_the_right() -> None:
    lines = draw(of(BEHIND).curves, of(BEHIND).standing, width=80).splitlines()
    inside = [line.split("│")[-2].split("┤")[-1] for line in lines if line.endswith("│")]
    first = [len(line) - len(line.lstrip()) for line in inside if line.strip()]
    assert first == sorted(first)


def test_axes_are_named_and_have_round_numbers() -> None:
    drawing = draw(of(CLEAR).curves, of(CLEAR).standing, width=80)
    for words in ("ε against noise", "noise multiplier", "1", "2", "5", "0┤"):
        assert words in drawing


def test_without_a_curve_a_sentence_says_so() -> None:
    assert draw((), of(CLEAR).standing, width=80).startswith("No chart")
