"""The page of a search: the best trial, how it was found, which settings matter for the score, and all trials."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import lehr
from lehr.reports.chart import Chart, Line
from lehr.reports.page import (
    Code,
    Facts,
    Page,
    Paragraph,
    ParallelAxes,
    Section,
    Table,
    figure,
    note,
    render_page,
)
from lehr.reports.progress import ACCURACY, DONE, TrialRow, best_first, best_of, score_text, setting_text, settings_text

FEWEST_FOR_SHARES = 8  # trials; with fewer, every setting seems to explain everything
MISSING = -0.1  # where a line crosses the axis of a setting that its trial did not have
THIRDS = 3
MOST_CHOICES = 6  # fewer distinct numbers are drawn as choices
LUCK = "The best of many scores is optimistic: the same settings will usually score lower when run again."
PARALLEL = (
    "Each line is a trial, from its settings to its score on the right; better trials have a stronger colour. Below "
    "the axis: the trial did not have the setting."
)
SHARES = (
    "The share of the variance of the scores that one setting explains alone. Settings interact, and with few trials "
    "some share arises by chance: a hint where to look, not a finding."
)


class Axis(NamedTuple):
    """One setting of the parallel plot: the height of each trial, by its number, and the ticks."""

    name: str
    heights: Mapping[int, float]
    ticks: tuple[tuple[float, str], ...]


def render(
    rows: Sequence[TrialRow], *, title: str, score: str, trials: int, terms: str, winner: str, names: Sequence[str]
) -> str:
    """The page. ``winner`` is the winning configuration as text, and ``names`` are the settings in order."""
    scored = [row for row in rows if row.score is not None]
    best = best_of(rows, score=score)
    reached = score_text(None if best is None else best.score, score=score)
    states = [row.state for row in rows]
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != DONE]
    shares = [(name, f"{share:.0%}") for name, share in _shares(scored, names)]
    counts = ", ".join([f"{states.count(DONE)} of {trials} trials done", *others])
    return render_page(
        Page(
            title=f"{title}: {reached}",
            heading=title,
            headline=reached,
            small=f"{score} of the best trial",
            introduction=[Paragraph(f"{counts}. The search was {terms}."), note(LUCK)],
            blocks=[
                *([] if best is None else _best_blocks(best, scored, score, names)),
                [Section(title="What the score depends on", parts=[Facts(rows=shares, are_numbers=True), note(SHARES)])]
                if shares
                else [],
                Section(title="Trials", parts=[_trials(rows, score)]),
                [Section(title="The winning configuration", parts=[Code(winner)])] if winner else [],
            ],
            footer=f"Searched by Lehr {lehr.__version__}.",
        )
    )


def _best_blocks(
    best: TrialRow, scored: Sequence[TrialRow], score: str, names: Sequence[str]
) -> Iterator[Section | Sequence[Section]]:
    settings = [(name, setting_text(value)) for name, value in best.parameters.items()]
    own = Section(title=f"The best settings (trial {best.number})", parts=[Facts(rows=settings, are_numbers=True)])
    yield own, figure(_best_so_far(scored, score))
    axes = [*_axes(scored, names), _score_axis(scored, score)]
    broken = [
        {"name": html.escape(axis.name).replace("_", "<br>").replace(".", ".<br>"), "ticks": axis.ticks}
        for axis in axes
    ]
    crossings = [*_crossings(scored, axes, score)]
    label = "Each trial as a line through its settings to its score. The table of trials has the numbers."
    parallel = ParallelAxes(axes=broken, crossings=crossings, label=label)
    yield Section(title="All trials", parts=[parallel, note(PARALLEL)])


def _trials(rows: Sequence[TrialRow], score: str) -> Table:
    return Table(
        title="Trials",
        headings=("Trial", "Settings", "State", "Time", score.capitalize()),
        rows=[
            (
                str(row.number),
                row.note or settings_text(row.parameters),
                row.state,
                "" if row.seconds is None else f"{row.seconds:,.0f} s",
                score_text(row.score, score=score),
            )
            for row in best_first(rows, score=score)
        ],
        numeric=(False, False, False, True, True),
    )


def _best_so_far(scored: Sequence[TrialRow], score: str) -> Chart:
    numbers, values = [float(row.number) for row in scored], [_value(row) for row in scored]
    pick = max if score == ACCURACY else min
    so_far = [pick(values[: place + 1]) for place in range(len(values))]
    form = ".1%" if score == ACCURACY else ".4f"
    return Chart(
        element="best",
        title="The best so far",
        x_title="trial",
        y_title=score,
        x_format="d",
        y_format=form,
        point=f"trial %{{x}}: %{{y:{form}}}",
        has_markers=True,
        lines=(
            Line(name="best so far", x=numbers, y=so_far),
            Line(name="each trial", x=numbers, y=values, is_scattered=True),
        ),
    )


def _axes(scored: Sequence[TrialRow], names: Sequence[str]) -> Iterator[Axis]:
    for name in (name for name in names if any(name in row.parameters for row in scored)):
        values = {row.number: row.parameters[name] for row in scored if name in row.parameters}
        numbers = {number: float(value) for number, value in values.items() if _is_number(value)}
        is_range = len(numbers) == len(values) and len(set(numbers.values())) > MOST_CHOICES
        yield _range_axis(name, numbers) if is_range else _choice_axis(name, values)


def _score_axis(scored: Sequence[TrialRow], score: str) -> Axis:
    values = {row.number: _value(row) for row in scored}
    ends = [(place, score_text(pick(values.values()), score=score)) for place, pick in ((0.0, min), (1.0, max))]
    heights = _range_axis(score, values, is_log=False).heights
    return Axis(name=score, heights=heights, ticks=tuple(ends) if len(set(values.values())) > 1 else ())


def _choice_axis(name: str, values: Mapping[int, Any]) -> Axis:
    """Choices in equal distances, whatever lies between them."""
    choices = sorted(set(values.values()), key=lambda value: (isinstance(value, str), value))
    places = {choice: place / max(1, len(choices) - 1) for place, choice in enumerate(choices)}
    return Axis(
        name=name,
        heights={number: places[value] for number, value in values.items()},
        ticks=tuple((place, html.escape(setting_text(choice))) for choice, place in places.items()),
    )


def _range_axis(name: str, values: Mapping[int, float], *, is_log: bool | None = None) -> Axis:
    """Numbers that are far apart are drawn by their logarithms."""
    low, high = min(values.values()), max(values.values())
    if is_log is None:
        is_log = low > 0 and high / low > 8
    shown = {number: math.log(value) if is_log else value for number, value in values.items()}
    first, last = min(shown.values()), max(shown.values())
    heights = {number: (value - first) / (last - first) if last > first else 0.5 for number, value in shown.items()}
    return Axis(name=name, heights=heights, ticks=((0.0, setting_text(low)), (1.0, setting_text(high))))


def _crossings(scored: Sequence[TrialRow], axes: Sequence[Axis], score: str) -> Iterator[Mapping[str, object]]:
    """The line of each trial through all axes. The best is last, over the others, and has share 1; the worst has 0."""
    ordered = list(reversed(best_first(scored, score=score)))
    for place, row in enumerate(ordered):
        settings = [f"{name} {setting_text(value)}" for name, value in row.parameters.items()]
        text = [f"trial {row.number}: {score_text(row.score, score=score)}", *settings]
        yield {
            "heights": [axis.heights.get(row.number, MISSING) for axis in axes],
            "text": "<br>".join(map(html.escape, text)),
            "share": place / max(1, len(ordered) - 1),
        }


def _shares(scored: Sequence[TrialRow], names: Sequence[str]) -> list[tuple[str, float]]:
    """How much of the variance of the scores each setting explains alone, the largest first."""
    asked = {name: [row for row in scored if name in row.parameters] for name in names}
    found = [(name, _share(rows, name)) for name, rows in asked.items() if len(rows) >= FEWEST_FOR_SHARES]
    return sorted(found, key=lambda pair: -pair[1])


def _share(rows: Sequence[TrialRow], name: str) -> float:
    """Omega squared: the share of the variance that is between groups, less what groups drawn by chance would show."""
    groups = _groups(rows, name)
    every = [value for group in groups for value in group]
    within, total = (sum((v - fmean(part)) ** 2 for part in parts for v in part) for parts in (groups, [every]))
    if not total > 0 or len(every) == len(groups):
        return 0.0
    by_chance = within / (len(every) - len(groups))
    return max(0.0, (total - within - (len(groups) - 1) * by_chance) / (total + by_chance))


def _groups(rows: Sequence[TrialRow], name: str) -> list[list[float]]:
    """The scores by the choices of a setting; a range is cut into thirds of its trials."""
    values = [row.parameters[name] for row in rows]
    if all(map(_is_number, values)) and len(set(values)) > MOST_CHOICES:
        ordered = sorted(rows, key=lambda row: float(row.parameters[name]))
        ends = [len(ordered) * third // THIRDS for third in range(THIRDS + 1)]
        return [[_value(row) for row in ordered[first:last]] for first, last in itertools.pairwise(ends)]
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(setting_text(row.parameters[name]), []).append(_value(row))
    return list(groups.values())


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(row: TrialRow) -> float:
    assert row.score is not None
    return row.score
