"""The page of a search: the best trial, how it was found, the score against each setting, and all trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lehr
from lehr.reports.chart import Chart, Line
from lehr.reports.page import Code, Facts, Page, Paragraph, Section, Table, note, render_page
from lehr.reports.progress import ACCURACY, DONE, TrialRow, best_first, best_of, score_text, setting_text, settings_text

MOST_CHOICES = 6  # fewer distinct numbers are drawn as choices, in equal distances
FAR_APART = 8  # numbers that differ by a larger factor are drawn on a logarithmic axis
LUCK = "The best of many scores is optimistic: the same settings will usually score lower when run again."


def render(
    rows: Sequence[TrialRow], *, title: str, score: str, trials: int, terms: str, winner: str, names: Sequence[str]
) -> str:
    """The page. ``winner`` is the winning configuration as text, and ``names`` are the settings in order."""
    best = best_of(rows, score=score)
    reached = score_text(None if best is None else best.score, score=score)
    states = [row.state for row in rows]
    others = [f"{states.count(state)} {state}" for state in dict.fromkeys(states) if state != DONE]
    counts = ", ".join([f"{states.count(DONE)} of {trials} trials done", *others])
    settings = [] if best is None else [("trial", str(best.number))]
    settings += [] if best is None else [(name, setting_text(value)) for name, value in best.parameters.items()]
    return render_page(
        Page(
            title=f"{title}: {reached}",
            heading=title,
            headline=reached,
            small=f"{score} of the best trial",
            introduction=[Paragraph(f"{counts}. The search was {terms}."), note(LUCK)],
            blocks=[
                [Facts(title="The best settings", rows=settings), _best_so_far(rows, score)],
                [_slice_chart(rows, name, score, number) for number, name in enumerate(names)],
                trial_table(rows, score=score),
                [Section(title="The winning configuration", parts=[Code(winner)])] if winner else [],
            ],
            footer=f"Searched by Lehr {lehr.__version__}.",
        )
    )


def trial_table(rows: Sequence[TrialRow], *, score: str) -> Table:
    """All trials, the best first."""
    return Table(
        title="Trials",
        headings=("trial", "settings", "state", "time", score),
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
    )


def _best_so_far(rows: Sequence[TrialRow], score: str) -> Chart:
    scored = [(float(row.number), row.score) for row in rows if row.score is not None]
    numbers, values = [number for number, _ in scored], [value for _, value in scored]
    pick = max if score == ACCURACY else min
    lines = (
        Line(name="best so far", x=numbers, y=[pick(values[: place + 1]) for place in range(len(values))]),
        Line(name="each trial", x=numbers, y=values, is_scattered=True),
    )
    return Chart(
        element="best",
        title="The best so far",
        x_title="trial",
        y_title=score,
        x_format="d",
        y_format=_format(score),
        has_markers=True,
        lines=lines if scored else (),
    )


def _slice_chart(rows: Sequence[TrialRow], name: str, score: str, number: int) -> Chart:
    """The scores against one setting. Few distinct values, and words, are drawn in equal distances."""
    shown = [(row, row.score) for row in rows if name in row.parameters and row.score is not None]
    settings = [row.parameters[name] for row, _ in shown]
    xs = [float(value) for value in settings if isinstance(value, int | float) and not isinstance(value, bool)]
    style: dict[str, Any] = {}
    if len(xs) < len(settings) or len(set(xs)) <= MOST_CHOICES:
        choices = sorted(set(settings), key=lambda value: (isinstance(value, str), value))
        xs = [float(choices.index(value)) for value in settings]
        style = {"x_ticks": tuple(map(float, range(len(choices)))), "x_labels": tuple(map(setting_text, choices))}
    elif min(xs) > 0 and max(xs) / min(xs) > FAR_APART:
        style = {"x_scale": "log", "x_format": "~g"}
    notes = [
        f"trial {row.number}: {score_text(value, score=score)}, {settings_text(row.parameters)}" for row, value in shown
    ]
    line = Line(name="trials", x=xs, y=[value for _, value in shown], is_scattered=True, notes=notes)
    return Chart(
        element=f"setting-{number}",
        title=f"{score.capitalize()} against {name}",
        x_title=name,
        y_title=score,
        y_format=_format(score),
        lines=(line,) if len(set(settings)) > 1 else (),
        **style,
    )


def _format(score: str) -> str:
    return ".1%" if score == ACCURACY else ""
