"""The charts of a run, or of several runs in one: from public values only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

from lehr.certificates.run_reading import RunRecord, State
from lehr.planning.budget import FILTER
from lehr.reports.chart import Chart, Line, one_two_five, thinned
from lehr.rounding import rounded_up
from lehr.run.shape import Evaluation

STEPS, EPSILON = "steps", "ε spent (proven)"
POINTS = 300  # of one chart, all lines together: the page has to stay small
FEWEST_OF_A_LINE = 12
MANY_CLASSES = 30  # more cannot be told apart on a chart, and are sorted instead
SPENT = (
    "The ε spent after a step is that of a run planned to end there. A run that stops early because of what it saw is "
    "still charged for all of its planned steps."
)
CHARGED = (
    "Each point has the ε of a run planned to end there. A run that ended early is still charged for the whole plan: "
    "the dotted line leads to that proven ε."
)
ACCEPTED = "A rejected candidate is charged like every other."
NOISE = "The noise over the sensitivity of a sum. It is public: planned, or computed from released values."
CLIP = "The sensitivity that the noise is scaled by. It is public: scheduled, or computed from released values."
TEMPERATURE = (
    "It follows from the number of accepted candidates. At a low temperature, higher losses are rarely accepted."
)
CLASSES = "Only public records are evaluated by class."
Value = Callable[[Evaluation], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartedRun:
    """A run and its name on a chart, empty where it is the only one."""

    record: RunRecord
    name: str = ""
    colour: int | None = None  # the same on every chart

    @property
    def has_epsilon(self) -> bool:
        """Whether each evaluation has an ε that the model itself promises; a trial of a search has none."""
        rows, record = self.record.evaluations, self.record
        is_own = record.trial_of is None and record.is_private
        return is_own and bool(rows) and all(math.isfinite(row.epsilon_spent) for row in rows)

    @property
    def evaluated_on(self) -> tuple[str, ...]:
        """The names of the sets of records that the model was evaluated on."""
        return tuple(dict.fromkeys(row.on for row in self.record.evaluations))

    @property
    def charged(self) -> float | None:
        """The proven ε of a run that ended early, where that is more than it had spent.

        Only a budget that is kept as a filter gives back what was not used.
        """
        record = self.record
        is_filtered = record.certificate is not None and record.certificate.claim.accountant == FILTER
        ended_early = record.state in (State.ACCEPTED, State.STOPPED) and not is_filtered
        if not (self.has_epsilon and ended_early) or record.proven is None:
            return None
        epsilon = rounded_up(record.proven.epsilon, digits=5)
        return epsilon if epsilon > record.evaluations[-1].epsilon_spent else None

    def line_name(self, on: str) -> str:
        """The name of the run, with the evaluated records where there are several sets."""
        if not self.name:
            return on
        return f"{self.name}, {on}" if len(self.evaluated_on) > 1 else self.name

    def rows_on(self, on: str) -> list[Evaluation]:
        return [row for row in self.record.evaluations if row.on == on]

    def rows_by_step(self) -> list[Evaluation]:
        """One row for each step, whatever it was evaluated on."""
        return [*{row.step: row for row in self.record.evaluations}.values()]


def scores(runs: Sequence[ChartedRun], *, by_epsilon: bool, suffix: str = "") -> Iterator[Chart]:
    """Accuracy and loss, against ε or against steps; a line for each run and set of records."""
    shown = [run for run in runs if run.record.evaluations and (run.has_epsilon or not by_epsilon)]
    x_title, x = (EPSILON, _epsilon) if by_epsilon else (STEPS, _step)
    for name, y_format, point in (("accuracy", ".0%", "accuracy %{y:.2%}"), ("loss", "", "loss %{y:.4g}")):
        y = attrgetter(name)
        lines = [_line(run, run.rows_on(on), x, y, run.line_name(on)) for run in shown for on in run.evaluated_on]
        charged = [line for run in shown if by_epsilon for line in _charged_lines(run, y)]
        title, note = f"{name.capitalize()} against {x_title}", CHARGED if charged else ""
        lines += charged
        yield from _chart(name + suffix, title, note, runs, lines, name, point, x_title=x_title, y_format=y_format)


def spent(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """ε against steps."""
    lines = [_line(run, run.rows_by_step(), _step, _epsilon, run.name or "ε") for run in runs if run.has_epsilon]
    title, point = "ε spent against steps", "ε ≤ %{y:.5~g}"
    yield from _chart("spent", title, SPENT, runs, lines, EPSILON, point, from_zero=True)


def acceptance(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """The share of candidates accepted, of runs that can reject some."""
    lines = [line for run in runs if can_reject(run.record) for line in _acceptance_lines(run)]
    title, point = "Share of candidates accepted", "%{y:.1%} accepted"
    yield from _chart("acceptance", title, ACCEPTED, runs, lines, "accepted", point, y_format=".0%", from_zero=True)


def can_reject(record: RunRecord) -> bool:
    """Whether the run rejected candidates, or is annealed and might have."""
    is_annealed = annealing_settings(record.config) is not None
    return is_annealed or any(row.accepted < row.step for row in record.evaluations)


def temperature(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """The temperature of annealed runs."""
    lines = []
    for run in runs:
        annealed = annealing_settings(run.record.config)
        if annealed is not None:
            value = partial(annealing_temperature, annealed)
            rows = [row for row in run.rows_by_step() if math.isfinite(value(row))]
            lines += [_line(run, rows, _step, value, run.name or "temperature")] if rows else []
    style: dict[str, Any] = {"y_format": "~g", "y_scale": "log"}
    if lines:
        style["y_ticks"] = one_two_five([value for line in lines for value in line.y])
    title, point = "Temperature", "temperature %{y:.4~g}"
    yield from _chart("temperature", title, TEMPERATURE, runs, lines, "temperature", point, **style)


def noise(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """The noise multiplier over time."""
    lines = [line for run in runs if (line := _noise_line(run)) is not None]
    title, point = "Noise multiplier", "noise multiplier %{y:.5~g}"
    yield from _chart("noise", title, NOISE, runs, lines, "noise multiplier", point, from_zero=True)


def clip(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """The clip norm over time, if a run reports it."""
    found = [(run, [row for row in run.rows_by_step() if row.clip_norm is not None]) for run in runs]
    lines = [_line(run, rows, _step, attrgetter("clip_norm"), run.name or "clip norm") for run, rows in found if rows]
    yield from _chart("clip", "Clip norm", CLIP, runs, lines, "clip norm", "clip norm %{y:.5~g}", from_zero=True)


def classes(runs: Sequence[ChartedRun]) -> Iterator[Chart]:
    """The accuracy of each class at the last evaluation that has it."""
    found = [(run, row) for run in runs if (row := last_with_classes(run.record)) is not None]
    most = max((len(row.accuracy_by_class or ()) for _, row in found), default=0)
    is_sorted = most > MANY_CLASSES
    lines = [_class_line(run, row, is_sorted=is_sorted) for run, row in found]
    note = f"{_spread(found[0][1])} {CLASSES}" if found and len(runs) == 1 else CLASSES
    style: dict[str, Any] = {"x_title": "class", "x_ticks": tuple(map(float, range(most)))}
    point = "class %{x}: %{y:.2%}"
    if is_sorted:
        style, point = {"x_title": "classes, from the worst to the best"}, "%{y:.2%}"
    style |= {"y_format": ".0%", "from_zero": True}
    yield from _chart("classes", "Accuracy of each class", note, runs, lines, "accuracy", point, **style)


def last_with_classes(record: RunRecord) -> Evaluation | None:
    """The last evaluation with an accuracy for each class."""
    found = [row for row in record.evaluations if any(share is not None for share in row.accuracy_by_class or ())]
    return found[-1] if found else None


def annealing_settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The settings of an annealed acceptance, also inside of another one; None where there is none."""
    found = config["method"].get("acceptance")
    while isinstance(found, Mapping):
        if found.get("kind") == "annealed":
            return found
        found = found.get("of")
    return None


def annealing_temperature(annealed: Mapping[str, Any], row: Evaluation) -> float:
    """The temperature after a step; infinite before any acceptance.

    >>> row = Evaluation(step=8, accepted=5, epsilon_spent=1.0, loss=0.5, accuracy=0.5, on="test", learning_rate=0.1)
    >>> annealing_temperature({"initial_inverse_temperature": 10, "cooling": "accepted", "cooling_rate": None}, row)
    0.02
    """
    first = 1 / float(annealed["initial_inverse_temperature"])
    if annealed["cooling"] == "classic":
        return first * float(annealed["cooling_rate"]) ** row.step
    accepted = max(row.accepted, 1) if annealed["cooling"] == "floored" else row.accepted
    return first / accepted if accepted else float("inf")


def _charged_lines(run: ChartedRun, value: Value) -> Iterator[Line]:
    """From the ε spent at the last evaluation to the ε charged."""
    if run.charged is None:
        return
    for number, on in enumerate(run.evaluated_on):
        last = run.rows_on(on)[-1]
        yield Line(
            name=f"{run.line_name(on)}, charged",
            x=[_epsilon(last), run.charged],
            y=[_six_digits(value(last))] * 2,
            dash="dot",
            colour=number if run.colour is None else run.colour,
        )


def _acceptance_lines(run: ChartedRun) -> Iterator[Line]:
    rows = [row for row in run.rows_by_step() if row.step]
    if not rows:
        return
    yield _line(run, rows, _step, lambda row: row.accepted / row.step, run.name or "so far")
    if not run.name:
        shares = [(after.accepted - before.accepted) / (after.step - before.step) for before, after in pairwise(rows)]
        yield Line(name="since the evaluation before", x=[row.step for row in rows[1:]], y=shares)


def _noise_line(run: ChartedRun) -> Line | None:
    name, plan = run.name or "noise multiplier", run.record.plan
    every = run.rows_by_step()
    rows = [row for row in every if row.noise_multiplier is not None]
    if rows:
        return _line(run, rows, _step, attrgetter("noise_multiplier"), name)
    if plan is None or plan.limit is not None or not plan.noise_multiplier or not every:
        return None
    steps = plan.steps  # of a run that did not report it: as planned
    return _line(run, every, _step, lambda row: plan.noise_multiplier_at(max(0, min(row.step, steps) - 1)), name)


def _class_line(run: ChartedRun, row: Evaluation, *, is_sorted: bool) -> Line:
    shares = [math.nan if share is None else share for share in row.accuracy_by_class or ()]
    if is_sorted:
        shares = sorted(share for share in shares if math.isfinite(share))
    y = [_six_digits(share) for share in shares]
    return Line(name=run.name or "accuracy", x=list(range(len(y))), y=y, is_bars=not is_sorted, colour=run.colour)


def _spread(row: Evaluation) -> str:
    found = [(share, label) for label, share in enumerate(row.accuracy_by_class or ()) if share is not None]
    (least, worst), (most, best) = min(found), max(found)
    return (
        f"On {row.on}, after step {row.step:,}: class {worst} is the worst with {least:.1%}, class {best} the best "
        f"with {most:.1%}."
    )


def _chart(
    element: str,
    title: str,
    note: str,
    runs: Sequence[ChartedRun],
    lines: Sequence[Line],
    y_title: str,
    point: str,
    x_title: str = STEPS,
    **style: Any,
) -> Iterator[Chart]:
    """The chart, with thinned lines; none if there are no lines."""
    if not lines:
        return
    where = {STEPS: "step %{x:,}<br>", EPSILON: "ε ≤ %{x:.5~g}<br>"}.get(x_title, "")
    most = max(FEWEST_OF_A_LINE, POINTS // len(lines))
    yield Chart(
        element=element,
        title=title,
        note=note,
        x_title=x_title,
        y_title=y_title,
        x_format=",d" if x_title == STEPS else "",
        point=where + point,
        has_markers=True,
        lines=tuple(replace(line, x=thinned(line.x, most=most), y=thinned(line.y, most=most)) for line in lines),
        names_lines=len(runs) > 1,
        **style,
    )


def _line(run: ChartedRun, rows: Sequence[Evaluation], x: Value, y: Value, name: str) -> Line:
    return Line(name=name, x=[*map(x, rows)], y=[_six_digits(y(row)) for row in rows], colour=run.colour)


def _step(row: Evaluation) -> float:
    return row.step


def _epsilon(row: Evaluation) -> float:
    return rounded_up(row.epsilon_spent, digits=5)  # still a bound in the digits that are shown


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
