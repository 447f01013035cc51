from __future__ import annotations

import math

import pytest

from lehr.reports.chart import MARK, MOST_ROWS, Chart, Line, draw_in_terminal, numbers, thinned

CURVE = Line(name="ε", x=[36 * index for index in range(200)], y=[3 * math.sqrt(index / 199) for index in range(200)])


def chart(
    *lines: Line, x_title: str = "steps", y_title: str = "loss", y_format: str = "", scale: str = "linear"
) -> Chart:
    return Chart(
        element="curve", x_title=x_title, y_title=y_title, x_format=",d", y_format=y_format, lines=lines, x_scale=scale
    )


def test_every_point_of_a_short_line_is_a_row() -> None:
    table = numbers(chart(Line(name="a", x=[1, 2_000], y=[0.123456789, math.nan])))
    assert table.headings == ("Steps", "Loss")
    assert table.rows == (("1", "0.12346"), ("2,000", "–"))


def test_an_epsilon_is_rounded_up_and_never_down() -> None:
    table = numbers(chart(Line(name="a", x=[3.9999401], y=[0.5]), x_title="ε spent (proven)"))
    assert (table.headings[0], table.rows[0][0]) == ("ε spent (proven)", "4")


def test_several_lines_are_told_apart_and_areas_left_out() -> None:
    area = Line(name="likely", x=[1, 2], y=[1.0, 2.0], is_area=True)
    table = numbers(chart(Line(name="a", x=[1], y=[0.5]), Line(name="b", x=[1], y=[0.25]), area, y_format=".0%"))
    assert table.headings == ("Line", "Steps", "Loss")
    assert table.rows == (("a", "1", "50.00%"), ("b", "1", "25.00%"))


def test_a_long_line_keeps_its_ends() -> None:
    table = numbers(chart(Line(name="a", x=range(5000), y=[0.5] * 5000)))
    assert len(table.rows) <= MOST_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == ("0", "4,999")
    assert thinned([3, 1, 2], most=3) == [3, 1, 2]


@pytest.mark.parametrize("width", [10, 40, 60, 80, 200])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_a_terminal_chart_fits_and_has_no_colour_codes(width: int, scale: str) -> None:
    line = CURVE if scale == "linear" else Line(name="a", x=[0.5, 1.0, 8.0], y=[9.0, 3.0, 1.0])
    drawing = draw_in_terminal(chart(line, scale=scale), width=width)
    assert max(map(len, drawing.splitlines())) <= max(width, 40)
    assert "\x1b" not in drawing


def test_a_terminal_chart_has_titles_round_numbers_and_a_rising_curve() -> None:
    drawing = draw_in_terminal(chart(CURVE, y_title="ε"), width=80)
    for words in ("ε against steps", "2,000", "4,000", "6,000", "1┤", "2┤", "3┤"):
        assert words in drawing
    columns = [line.split("│")[1] for line in drawing.splitlines() if line.count("│") == 2]
    assert columns[0].rstrip() != columns[0].strip()  # the top row is filled at its right end only
    assert len(columns[-1].rstrip()) < 5
    draw_in_terminal(chart(Line(name="b", x=[0, 5], y=[0.0, 99.0])), width=60)
    assert draw_in_terminal(chart(CURVE, y_title="ε"), width=80) == drawing  # nothing of another chart is left


def test_marks_are_drawn_with_a_legend_and_large_values_cut_off() -> None:
    mark = Line(name="here", x=[2.0], y=[2.0], is_mark=True)
    line = Line(name="a", x=[1.0, 2.0, 4.0], y=[1000.0, 2.0, 1.0])
    *drawing, legend = draw_in_terminal(chart(line, mark, scale="log"), width=80, top=4.0).splitlines()
    assert sum(row.count(MARK) for row in drawing) == 1
    assert legend == f" {MARK} here"
    assert "1000" not in "".join(drawing)


@pytest.mark.parametrize("value, words", [(math.inf, "ε is infinite"), (0.0, "ε is 0 throughout")])
def test_where_there_is_no_curve_a_sentence_says_so(value: float, words: str) -> None:
    assert words in draw_in_terminal(chart(Line(name="a", x=[0, 1], y=[0.0, value]), y_title="ε"), width=80)


@pytest.mark.parametrize("value", [1e-9, 0.00037, 1.0, 123456.0])
@pytest.mark.parametrize("steps", [1, 3, 10, 10_000_000])
def test_any_scale_can_be_drawn(value: float, steps: int) -> None:
    assert "steps" in draw_in_terminal(chart(Line(name="a", x=[0, steps], y=[0.0, value])), width=80)
