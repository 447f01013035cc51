"""A search as one web page: the best trial, how it was found, which settings went with good scores, and all trials."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import lehr
from lehr.reports import page_frame
from lehr.reports.chart import Chart, Line
from lehr.reports.search_rows import ACCURACY, DONE, Row, best_first, best_of, score_in_words, setting_in_words

TEMPLATE = "search_page.html.jinja"
FEWEST_FOR_SHARES = 8  # trials; with fewer, every setting seems to explain everything
MISSING = -0.1  # where a line crosses the axis of a setting that its trial was not asked for
THIRDS = 3
MOST_CHOICES = 6  # numbers that are fewer are drawn as choices


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One setting in the picture of all trials: what stands at which height, from 0 to 1."""

    name: str
    heights: Mapping[int, float]  # by the numbers of the trials that were asked for it
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Crossing:
    """The line of one trial through all axes; ``share`` is 1 for the best trial and 0 for the worst."""

    heights: tuple[float, ...]
    text: str
    share: float


def render(
    rows: Sequence[Row], *, title: str, score: str, trials: int, terms: str, winner: str, names: Sequence[str]
) -> str:
    """The page. ``winner`` is the configuration that won, as text, and ``names`` are the settings in their order.

    Everything but the script of plotly is escaped.
    """
    scored = [row for row in rows if row.score is not None]
    best = best_of(rows, score=score)
    axes = [*_axes(scored, names), _score_axis(scored, score)] if scored else []
    return page_frame.render(
        TEMPLATE,
        charts=[_best_so_far(scored, score)] if scored else [],
        heading=title,
        reached=score_in_words(None if best is None else best.score, score=score),
        score=score,
        best=best,
        settings=[] if best is None else [(n, setting_in_words(v)) for n, v in best.parameters.items()],
        counted=_counted(rows, trials),
        terms=terms,
        shares=[(name, f"{share:.0%}") for name, share in _shares(scored, names)],
        axes=[{**asdict(axis), "name": _broken(axis.name)} for axis in axes],
        crossings=[asdict(crossing) for crossing in _crossings(scored, axes, score)],
        rows=[_cells(row, score) for row in best_first(rows, score=score)],
        winner=winner,
        version=lehr.__version__,
    )


def _counted(rows: Sequence[Row], trials: int) -> str:
    states = [row.state for row in rows]
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != DONE]
    return f"{states.count(DONE)} of {trials} trials done" + "".join(f", {words}" for words in others)


def _best_so_far(scored: Sequence[Row], score: str) -> Chart:
    numbers, values = [float(row.number) for row in scored], [_value(row) for row in scored]
    pick = max if score == ACCURACY else min
    so_far = [pick(values[: place + 1]) for place in range(len(values))]
    form = ".1%" if score == ACCURACY else ".4f"
    return Chart(
        element="best",
        x_title="trial",
        y_title=score,
        x_format="d",
        y_format=form,
        point=f"trial %{{x}}: %{{y:{form}}}",
        has_markers=True,
        from_zero=False,
        lines=(
            Line(name="best so far", x=numbers, y=so_far),
            Line(name="each trial", x=numbers, y=values, is_scattered=True),
        ),
    )


def _axes(scored: Sequence[Row], names: Sequence[str]) -> Iterator[Axis]:
    for name in (name for name in names if any(name in row.parameters for row in scored)):
        values = {row.number: row.parameters[name] for row in scored if name in row.parameters}
        numbers = {number: float(value) for number, value in values.items() if _is_number(value)}
        is_range = len(numbers) == len(values) and len(set(numbers.values())) > MOST_CHOICES
        yield _range_axis(name, numbers) if is_range else _choice_axis(name, values)


def _score_axis(scored: Sequence[Row], score: str) -> Axis:
    values = {row.number: _value(row) for row in scored}
    ends = [(place, score_in_words(pick(values.values()), score=score)) for place, pick in ((0.0, min), (1.0, max))]
    heights = _range_axis(score, values, is_log=False).heights
    return Axis(name=score, heights=heights, ticks=tuple(ends) if len(set(values.values())) > 1 else ())


def _choice_axis(name: str, values: Mapping[int, Any]) -> Axis:
    """Choices in equal distances, whatever lies between them."""
    choices = sorted(set(values.values()), key=lambda value: (isinstance(value, str), value))
    places = {choice: place / max(1, len(choices) - 1) for place, choice in enumerate(choices)}
    return Axis(
        name=name,
        heights={number: places[value] for number, value in values.items()},
        ticks=tuple((place, html.escape(setting_in_words(choice))) for choice, place in places.items()),
    )


def _range_axis(name: str, values: Mapping[int, float], *, is_log: bool | None = None) -> Axis:
    """Numbers that are far apart are drawn by their logarithms."""
    low, high = min(values.values()), max(values.values())
    if is_log is None:
        is_log = low > 0 and high / low > 8
    shown = {number: math.log(value) if is_log else value for number, value in values.items()}
    first, last = min(shown.values()), max(shown.values())
    heights = {number: (value - first) / (last - first) if last > first else 0.5 for number, value in shown.items()}
    return Axis(name=name, heights=heights, ticks=((0.0, setting_in_words(low)), (1.0, setting_in_words(high))))


def _crossings(scored: Sequence[Row], axes: Sequence[Axis], score: str) -> Iterator[Crossing]:
    """The best is drawn last, over the others."""
    ordered = list(reversed(best_first(scored, score=score)))
    for place, row in enumerate(ordered):
        said = [f"{name} {setting_in_words(value)}" for name, value in row.parameters.items()]
        text = [f"trial {row.number}: {score_in_words(row.score, score=score)}", *said]
        yield Crossing(
            heights=tuple(axis.heights.get(row.number, MISSING) for axis in axes),
            text="<br>".join(map(html.escape, text)),
            share=place / max(1, len(ordered) - 1),
        )


def _shares(scored: Sequence[Row], names: Sequence[str]) -> list[tuple[str, float]]:
    """How much of the differences between scores goes with each setting alone, the largest first."""
    asked = {name: [row for row in scored if name in row.parameters] for name in names}
    found = [(name, _share(rows, name)) for name, rows in asked.items() if len(rows) >= FEWEST_FOR_SHARES]
    return sorted(found, key=lambda pair: -pair[1])


def _share(asked: Sequence[Row], name: str) -> float:
    """Omega squared: the share of the variance that is between groups, less what groups drawn by chance would show."""
    groups = _groups(asked, name)
    every = [value for group in groups for value in group]
    within = sum((value - _mean(group)) ** 2 for group in groups for value in group)
    total = sum((value - _mean(every)) ** 2 for value in every)
    if not total > 0 or len(every) == len(groups):
        return 0.0
    by_chance = within / (len(every) - len(groups))
    return max(0.0, (total - within - (len(groups) - 1) * by_chance) / (total + by_chance))


def _groups(asked: Sequence[Row], name: str) -> list[list[float]]:
    """The scores by the choices of a setting; a range is cut into thirds of its trials."""
    values = [row.parameters[name] for row in asked]
    if all(map(_is_number, values)) and len(set(values)) > MOST_CHOICES:
        ordered = sorted(asked, key=lambda row: float(row.parameters[name]))
        ends = [len(ordered) * third // THIRDS for third in range(THIRDS + 1)]
        return [[_value(row) for row in ordered[first:last]] for first, last in itertools.pairwise(ends)]
    groups: dict[str, list[float]] = {}
    for row in asked:
        groups.setdefault(setting_in_words(row.parameters[name]), []).append(_value(row))
    return list(groups.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _cells(row: Row, score: str) -> tuple[str, str, str, str, str]:
    said = ", ".join(f"{name} {setting_in_words(value)}" for name, value in row.parameters.items())
    seconds = "" if row.seconds is None else f"{row.seconds:,.0f} s"
    return str(row.number), row.note or said, row.state, seconds, score_in_words(row.score, score=score)


def _broken(name: str) -> str:
    """A name over several lines, for there is not much room over an axis."""
    return html.escape(name).replace("_", "<br>").replace(".", ".<br>")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(row: Row) -> float:
    assert row.score is not None
    return row.score
