"""The charts of a run, or of several runs in one: from public values only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from lehr.planning.budget import FILTER
from lehr.reports import annealing
from lehr.reports.chart import Chart, Figure, Line, thinned
from lehr.reports.rounding import rounded_up
from lehr.reports.run_reading import RunRecord, State
from lehr.run_shape import Evaluation

STEPS, EPSILON = "steps", "ε spent (proven)"
POINTS = 300  # of one chart, all lines together: the page has to stay small
FEWEST_OF_A_LINE = 12
MANY_CLASSES = 30  # more are no longer told apart on a chart, and are put in order instead
SPENT = (
    "ε spent is that of a run which had planned to end there. A run that stops early because of what it saw is still "
    "charged for all of its planned steps."
)
CHARGED = (
    "Each point has the ε of a run which had planned to end there. A run that ended before its plan did is charged for "
    "the whole plan all the same: the dotted line leads to that ε, which is the proven one."
)
ACCEPTED = "A rejected candidate is charged like every other."
NOISE = "Over what one record can do to a sum. It is public: the plan has it, or it follows from what was released."
CLIP = (
    "What one record can do to a sum, which is what noise is scaled by. It is public: a schedule has it, or it follows "
    "from what was released."
)
TEMPERATURE = (
    "It follows from how many candidates were accepted. The colder it is, the less often a higher loss is accepted."
)
CLASSES = "Classes are told on public records only."
Value = Callable[[Evaluation], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A run, and what it is called on a chart; nothing where it is the only one."""

    record: RunRecord
    name: str = ""
    colour: int | None = None  # the same on every chart

    @property
    def has_epsilon(self) -> bool:
        """Whether each evaluation has an ε that the model itself promises: one trial of a search has none."""
        rows, record = self.record.evaluations, self.record
        is_own = record.trial_of is None and record.is_private
        return is_own and bool(rows) and all(math.isfinite(row.epsilon_spent) for row in rows)

    @property
    def places(self) -> tuple[str, ...]:
        """Each set of records that the model was evaluated on."""
        return tuple(dict.fromkeys(row.on for row in self.record.evaluations))

    @property
    def charged(self) -> float | None:
        """What is proven of a run that ended before its plan did, which is more than it had spent by then.

        Only a budget that is kept as a filter gives back what was not used.
        """
        record = self.record
        is_filtered = record.certificate is not None and record.certificate.claim.claim.accountant == FILTER
        ended_early = record.state in (State.ACCEPTED, State.STOPPED) and not is_filtered
        if not (self.has_epsilon and ended_early) or record.proven is None:
            return None
        epsilon = rounded_up(record.proven.epsilon, digits=5)
        return epsilon if epsilon > record.evaluations[-1].epsilon_spent else None

    def line_name(self, on: str) -> str:
        """The run, and on which records where that is not clear."""
        if not self.name:
            return on
        return f"{self.name}, {on}" if len(self.places) > 1 else self.name


def scores(runs: Sequence[Drawn], *, by_epsilon: bool, suffix: str = "") -> Iterator[Figure]:
    """Accuracy and loss, against ε or against steps; a line for each run and set of records."""
    shown = [run for run in runs if run.record.evaluations and (run.has_epsilon or not by_epsilon)]
    x_title, x = (EPSILON, _epsilon) if by_epsilon else (STEPS, _step)
    if not shown:
        return
    for name, y_format, point in (("accuracy", ".0%", "accuracy %{y:.2%}"), ("loss", "", "loss %{y:.4g}")):
        lines = [_line(run, _on(run, on), x, _named(name), run.line_name(on)) for run in shown for on in run.places]
        charged = [line for run in shown if by_epsilon for line in _charged_lines(run, _named(name))]
        every = [*lines, *charged]
        chart = _chart(name + suffix, runs, every, x_title=x_title, y_title=name, y_format=y_format, point=point)
        yield Figure(title=f"{name.capitalize()} against {x_title}", chart=chart, note=CHARGED if charged else "")


def spent(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """ε against steps."""
    lines = [_line(run, _once(run), _step, _epsilon, run.name or "ε") for run in runs if run.has_epsilon]
    if lines:
        chart = _chart("spent", runs, lines, y_title=EPSILON, point="ε ≤ %{y:.5~g}", from_zero=True)
        yield Figure(title="ε spent against steps", chart=chart, note=SPENT)


def acceptance(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """The share of candidates accepted, of runs that might have rejected some."""
    lines = [line for run in runs if is_choosy(run.record) for line in _acceptance_lines(run)]
    if lines:
        point = "%{y:.1%} accepted"
        chart = _chart("acceptance", runs, lines, y_title="accepted", y_format=".0%", point=point, from_zero=True)
        yield Figure(title="Share of candidates accepted", chart=chart, note=ACCEPTED)


def is_choosy(record: RunRecord) -> bool:
    """Whether it rejected candidates, or is annealed and might have."""
    is_annealed = annealing.settings(record.config) is not None
    return is_annealed or any(row.accepted < row.step for row in record.evaluations)


def temperature(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """The temperature of annealed runs."""
    lines = [line for run in runs if (line := _temperature_line(run)) is not None]
    if lines:
        chart = replace(
            _chart("temperature", runs, lines, y_title="temperature", y_format="~g", point="temperature %{y:.4~g}"),
            y_scale="log",
            y_ticks=_one_two_five([value for line in lines for value in line.y]),
        )
        yield Figure(title="Temperature", chart=chart, note=TEMPERATURE)


def noise(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """The noise multiplier over time."""
    lines = [line for run in runs if (line := _noise_line(run)) is not None]
    if lines:
        point = "noise multiplier %{y:.5~g}"
        chart = _chart("noise", runs, lines, y_title="noise multiplier", point=point, from_zero=True)
        yield Figure(title="Noise multiplier", chart=chart, note=NOISE)


def clip(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """The clip norm over time, where a run tells it."""
    told = [(run, [row for row in _once(run) if row.clip_norm is not None]) for run in runs]
    lines = [_line(run, rows, _step, _named("clip_norm"), run.name or "clip norm") for run, rows in told if rows]
    if lines:
        chart = _chart("clip", runs, lines, y_title="clip norm", point="clip norm %{y:.5~g}", from_zero=True)
        yield Figure(title="Clip norm", chart=chart, note=CLIP)


def classes(runs: Sequence[Drawn]) -> Iterator[Figure]:
    """The accuracy of each class at the last evaluation that tells it."""
    told = [(run, row) for run in runs if (row := last_with_classes(run.record)) is not None]
    if not told:
        return
    most = max(len(row.accuracy_by_class or ()) for _, row in told)
    is_sorted = most > MANY_CLASSES
    chart = replace(
        _chart(
            "classes",
            runs,
            [_class_line(run, row, is_sorted=is_sorted) for run, row in told],
            x_title="classes, from the worst to the best" if is_sorted else "class",
            y_title="accuracy",
            y_format=".0%",
            point="%{y:.2%}" if is_sorted else "class %{x}: %{y:.2%}",
            from_zero=True,
        ),
        x_ticks=() if is_sorted else tuple(map(float, range(most))),
    )
    spread = f"{_spread(told[0][1])} " if len(runs) == 1 else ""
    yield Figure(title="Accuracy of each class", chart=chart, note=spread + CLASSES)


def last_with_classes(record: RunRecord) -> Evaluation | None:
    """The last evaluation that tells of each class."""
    told = [row for row in record.evaluations if any(share is not None for share in row.accuracy_by_class or ())]
    return told[-1] if told else None


def _charged_lines(run: Drawn, value: Value) -> Iterator[Line]:
    """From what a run had spent at its last evaluation to what it is charged."""
    if run.charged is None:
        return
    for on in run.places:
        last = _on(run, on)[-1]
        name = f"{run.line_name(on)}, charged"
        yield Line(
            name=name,
            x=[_epsilon(last), run.charged],
            y=[_six_digits(value(last))] * 2,
            dash="dot",
            colour=run.places.index(on) if run.colour is None else run.colour,
        )


def _acceptance_lines(run: Drawn) -> Iterator[Line]:
    rows = [row for row in _once(run) if row.step]
    if not rows:
        return
    yield _line(run, rows, _step, lambda row: row.accepted / row.step, run.name or "so far")
    if not run.name:
        shares = [(after.accepted - before.accepted) / (after.step - before.step) for before, after in pairwise(rows)]
        yield Line(name="since the evaluation before", x=[row.step for row in rows[1:]], y=shares)


def _temperature_line(run: Drawn) -> Line | None:
    annealed = annealing.settings(run.record.config)
    if annealed is None:
        return None
    value = partial(annealing.temperature, annealed)
    rows = [row for row in _once(run) if math.isfinite(value(row))]
    return _line(run, rows, _step, value, run.name or "temperature") if rows else None


def _noise_line(run: Drawn) -> Line | None:
    name, plan = run.name or "noise multiplier", run.record.plan
    rows = [row for row in _once(run) if row.noise_multiplier is not None]
    if rows:
        return _line(run, rows, _step, _named("noise_multiplier"), name)
    if plan is None or plan.limit is not None or not plan.noise_multiplier or not run.record.evaluations:
        return None
    steps = plan.steps  # of a run that did not write it down: as planned
    return _line(run, _once(run), _step, lambda row: plan.noise_multiplier_at(max(0, min(row.step, steps) - 1)), name)


def _class_line(run: Drawn, row: Evaluation, *, is_sorted: bool) -> Line:
    shares = [math.nan if share is None else share for share in row.accuracy_by_class or ()]
    if is_sorted:
        shares = sorted(share for share in shares if math.isfinite(share))
    return Line(
        name=run.name or "accuracy",
        x=list(range(len(shares))),
        y=[_six_digits(share) for share in shares],
        is_bars=not is_sorted,
        colour=run.colour,
    )


def _spread(row: Evaluation) -> str:
    told = [(share, place) for place, share in enumerate(row.accuracy_by_class or ()) if share is not None]
    (least, worst), (most, best) = min(told), max(told)
    return (
        f"On {row.on}, after step {row.step:,}: class {worst} is the worst with {least:.1%}, class {best} the best "
        f"with {most:.1%}."
    )


def _chart(
    element: str,
    runs: Sequence[Drawn],
    lines: Sequence[Line],
    *,
    y_title: str,
    point: str,
    x_title: str = STEPS,
    y_format: str = "",
    from_zero: bool = False,
) -> Chart:
    where = {STEPS: "step %{x:,}<br>", EPSILON: "ε ≤ %{x:.5~g}<br>"}.get(x_title, "")
    most = max(FEWEST_OF_A_LINE, POINTS // max(1, len(lines)))
    return Chart(
        element=element,
        x_title=x_title,
        y_title=y_title,
        x_format=",d" if x_title == STEPS else "",
        y_format=y_format,
        point=where + point,
        has_markers=True,
        from_zero=from_zero,
        lines=tuple(_thinned(line, most) for line in lines),
        names_lines=len(runs) > 1,
    )


def _line(run: Drawn, rows: Sequence[Evaluation], x: Value, y: Value, name: str) -> Line:
    return Line(name=name, x=[*map(x, rows)], y=[_six_digits(y(row)) for row in rows], colour=run.colour)


def _thinned(line: Line, most: int) -> Line:
    places = thinned(range(len(line.x)), most=most)
    return replace(line, x=[line.x[place] for place in places], y=[line.y[place] for place in places])


def _one_two_five(values: Sequence[float]) -> tuple[float, ...]:
    """Numbers that a logarithmic axis can be marked with."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return tuple(mark for power in powers for digit in (1, 2, 5) if low <= (mark := float(f"{digit}e{power}")) <= high)


def _on(run: Drawn, on: str) -> list[Evaluation]:
    return [row for row in run.record.evaluations if row.on == on]


def _once(run: Drawn) -> list[Evaluation]:
    """One row for each step, whatever it was evaluated on."""
    return [*{row.step: row for row in run.record.evaluations}.values()]


def _step(row: Evaluation) -> float:
    return row.step


def _epsilon(row: Evaluation) -> float:
    return rounded_up(row.epsilon_spent, digits=5)  # in as many digits as are shown it still is a bound


def _named(name: str) -> Value:
    def value(row: Evaluation) -> float:
        found: float = getattr(row, name)
        return found

    return value


def _six_digits(value: float) -> float:
    """What nobody can tell apart on a chart need not be in the page."""
    return float(f"{value:.6g}")
