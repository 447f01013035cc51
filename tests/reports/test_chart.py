from __future__ import annotations

import math

from lehr.reports.chart import MOST_ROWS, Chart, Line, numbers, thinned


def chart(*lines: Line, x_title: str = "steps", y_format: str = "") -> Chart:
    return Chart(
        element="curve",
        x_title=x_title,
        y_title="loss",
        x_format=",d",
        y_format=y_format,
        point="",
        has_markers=False,
        from_zero=False,
        lines=lines,
    )


def test_every_point_of_a_short_line_is_a_row() -> None:
    table = numbers(chart(Line(name="a", x=[1, 2_000], y=[0.123456789, 2.0])))
    assert table.headings == ("Steps", "Loss")
    assert table.rows == (("1", "0.12346"), ("2,000", "2"))


def test_an_epsilon_is_rounded_up_and_never_down() -> None:
    table = numbers(chart(Line(name="a", x=[3.9999401], y=[0.5]), x_title="ε spent (proven)"))
    assert table.headings[0] == "ε spent (proven)"
    assert table.rows[0][0] == "4"


def test_several_lines_are_told_apart_and_areas_left_out() -> None:
    area = Line(name="likely", x=[1, 2], y=[1.0, 2.0], is_area=True)
    table = numbers(chart(Line(name="a", x=[1], y=[0.5]), Line(name="b", x=[1], y=[0.25]), area, y_format=".0%"))
    assert table.headings == ("Line", "Steps", "Loss")
    assert table.rows == (("a", "1", "50.00%"), ("b", "1", "25.00%"))


def test_what_is_not_finite_is_a_dash() -> None:
    assert numbers(chart(Line(name="a", x=[1], y=[math.nan]))).rows == (("1", "–"),)


def test_a_long_line_keeps_its_ends() -> None:
    table = numbers(chart(Line(name="a", x=range(5000), y=[0.5] * 5000)))
    assert len(table.rows) <= MOST_ROWS
    assert (table.rows[0][0], table.rows[-1][0]) == ("0", "4,999")


def test_thinning_leaves_alone_what_is_short_enough() -> None:
    assert thinned([3, 1, 2], most=3) == [3, 1, 2]
