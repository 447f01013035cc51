"""A predicted accuracy as a page, as a section of the page of the predicted run, and as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lehr.certificates.run_reading import RunRecord, State
from lehr.planning.simulation import Comparison, Interval, Prediction, plan_words, simulate
from lehr.reports.chart import Chart, Line
from lehr.reports.page import Facts, Page, Paragraph, Section, Table, figure, note, render_page, warning
from lehr.rounding import at_most, exactly

POINTS = 40
BENDS_BELOW = 0.05
SAYS_LITTLE_ABOVE = 0.5
CAVEAT = (
    "The interval covers chance alone: it assumes that the line continues, and that the run is made as the simulated "
    "ones were, on similar records."
)
REVEALED = (
    "The simulated runs used records of the same name, declared to need no protection, and this run protects its "
    "records. If they are the same records, its guarantee is worth little: the simulated runs have revealed them."
)
SIMULATED = (
    "Batch and noise shrink together, so that a step is as noisy as one of the reference. A simulated run protects "
    "nobody: its records were declared to need no protection."
)


@dataclass(frozen=True, kw_only=True)
class PredictionOutcome:
    """A prediction beside a run: how it compares, or why it cannot be compared, and what differs."""

    comparison: Comparison | None
    not_compared_because: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.comparison is None:
            return "not compared"
        return "inside the interval" if self.comparison.is_inside else "outside the interval"


def compare_with_run(prediction: Prediction, record: RunRecord) -> PredictionOutcome:
    """Compare a prediction with the run; a run of another plan is refused."""
    prediction.refuse_other_plan(record.plan)
    rows = [row for row in record.evaluations if row.on == prediction.evaluated_on]
    warnings = tuple(_warnings(prediction, record.config))
    if record.state is not State.COMPLETED:
        because = f"the run is not at the end of its plan: {record.state.value}"
        return PredictionOutcome(comparison=None, not_compared_because=because, warnings=warnings)
    if not rows:
        because = f"the run was not evaluated on {prediction.evaluated_on}, as the simulated ones were"
        return PredictionOutcome(comparison=None, not_compared_because=because, warnings=warnings)
    return PredictionOutcome(comparison=prediction.compared_with([rows[-1].accuracy]), warnings=warnings)


def section(prediction: Prediction, record: RunRecord) -> Section:
    """The section of a run's page."""
    outcome = compare_with_run(prediction, record)
    sentence = prediction_text(prediction)
    if outcome.comparison is not None:
        sentence = comparison_text(prediction, outcome.comparison)
    elif outcome.not_compared_because:
        sentence += f" It is not compared: {outcome.not_compared_because}."
    return Section(
        title="Predicted and reached accuracy",
        badge=outcome.verdict,
        element="prediction",
        parts=[Paragraph(sentence), *map(warning, outcome.warnings), _chart(prediction, outcome), note(SIMULATED)],
    )


def render(prediction: Prediction) -> str:
    """The page of a prediction."""
    reference = f"{prediction.reference.expected_batch_size:,.10g}"
    accuracy, interval = percent(prediction.accuracy), interval_text(prediction.interval())
    runs = Table(
        title="Simulated runs",
        headings=("Batch", "Noise multiplier", "Reached, run by run", "The line"),
        rows=[*_rows(prediction)],
        numeric=(False, False, False, True),
        notes=[SIMULATED],
    )
    return render_page(
        Page(
            title=f"Predicted at batches of {reference}: {accuracy}",
            heading="Predicted accuracy of a private run, by simulation",
            headline=accuracy,
            small=f"({_confidence(prediction)}: {interval})",
            introduction=[Paragraph(prediction_text(prediction)), *map(note, prediction_sentences(prediction))],
            blocks=[
                figure(_chart(prediction)),
                Section(
                    title="What it rests on",
                    parts=[Facts(rows=[*prediction_facts(prediction), *_setting(prediction)])],
                ),
                Section(title="Simulated runs", parts=[runs]),
            ],
            footer=f"Predicted on {prediction.predicted_on} with Lehr {prediction.library_version}.",
        )
    )


def prediction_text(prediction: Prediction) -> str:
    """The prediction in a sentence."""
    batch, interval = f"{prediction.reference.expected_batch_size:,.10g}", interval_text(prediction.interval())
    return (
        f"A run with batches of {batch} is predicted to reach {percent(prediction.accuracy)} "
        f"({_confidence(prediction)}: {interval}), from {len(prediction.runs)} simulated runs that protect nobody."
    )


def prediction_sentences(prediction: Prediction) -> Iterator[str]:
    """What the prediction rests on, and what speaks against it."""
    law = prediction.law
    lowest, highest = (f"{100 * end:+.2f}" for end in prediction.slope_interval)
    yield (
        f"Each doubling of the batch changes the accuracy by {100 * law.slope:+.2f} points "
        f"({_confidence(prediction)}: {lowest} to {highest}); single runs deviate from the line by "
        f"{100 * law.residual_std:.2f} points."
    )
    if (interval := prediction.interval()).highest - interval.lowest > SAYS_LITTLE_ABOVE:
        yield "So wide an interval says next to nothing: more seeds or more batches narrow it."
    yield from objections(prediction)
    yield CAVEAT


def objections(prediction: Prediction) -> Iterator[str]:
    """Why the interval is too narrow, where that is known."""
    law = prediction.law
    if prediction.is_beyond_all_or_nothing:
        yield "The line leaves [0, 1]: it does not hold there, and predicts nothing."
    if law.bend_p_value is not None and law.bend_p_value < BENDS_BELOW:
        yield (
            f"The simulated runs bend away from a line (p = {law.bend_p_value:.2g}): the prediction is likely off by "
            "more than the interval."
        )
    batches = _batches(prediction)
    seen = math.log2(batches[-1] / batches[0])
    if prediction.doublings_beyond > seen:
        yield (
            f"The prediction reaches {_doublings(prediction.doublings_beyond)} beyond the largest simulated batch, "
            f"farther than the {_doublings(seen)} that were simulated."
        )


def prediction_facts(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """The numbers behind it."""
    reference, interval = prediction.reference, prediction.interval()
    yield "Predicted", f"{percent(prediction.accuracy)} ({_confidence(prediction)}: {interval_text(interval)})"
    yield "Reference", plan_words(reference)
    promised = f"{at_most(reference.bound().epsilon)} at δ = {exactly(reference.delta)}"
    yield "Its ε on private records", f"{promised}, with {reference.records:,} records"
    yield "Simulated runs", f"{len(prediction.runs)}, evaluated on {prediction.evaluated_on}"
    yield "Their cost", f"{prediction.cost:.2g} times the records of one run of the reference"
    yield "Extrapolated by", _doublings(prediction.doublings_beyond)


def comparison_text(prediction: Prediction, found: Comparison) -> str:
    """What was predicted, what was reached, and how far apart they are."""
    side = "inside" if found.is_inside else "outside"
    return (
        f"{percent(found.predicted)} was predicted ({_confidence(prediction)}: {interval_text(found.interval)}) and "
        f"{percent(found.outcome)} was reached: {side} the interval, {100 * found.difference:+.2f} points off."
    )


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def interval_text(interval: Interval) -> str:
    """Both ends, rounded outwards.

    >>> interval_text(Interval(0.6182, 0.6435))
    '61.8–64.4 %'
    """
    lowest, highest = (round(1000 * end, 6) for end in (interval.lowest, interval.highest))  # tenths of a percent
    return f"{math.floor(lowest) / 10:.1f}–{math.ceil(highest) / 10:.1f} %"


def _warnings(prediction: Prediction, config: Mapping[str, Any]) -> Iterator[str]:
    if prediction.may_reveal(config):
        yield REVEALED
    if others := prediction.other_settings(config):
        yield f"The simulated runs had other settings than this run: {'; '.join(others)}."
    yield from objections(prediction)


def _rows(prediction: Prediction) -> Iterator[tuple[str, str, str, str]]:
    """Each simulated batch: its noise multiplier, what its runs reached, and where the line is."""
    for batch in _batches(prediction):
        noise = simulate(prediction.reference, expected_batch_size=batch).noise_multiplier
        reached = ", ".join(percent(run.accuracy) for run in prediction.runs if run.expected_batch_size == batch)
        yield f"{batch:,.10g}", f"{noise:.4g}", reached, percent(prediction.law.at(batch))


def _setting(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """Which records and which network, where that is known."""
    if not prediction.setting:
        return
    data, model, method = (prediction.setting[name] for name in ("data", "model", "method"))
    parameters = model.get("parameters")
    size = f", {parameters:,} parameters" if isinstance(parameters, int) else ""
    yield "Records", f"{data.get('name')}, declared {data.get('declared')}"
    yield "Network", f"{model.get('network') or 'a custom one'}{size}"
    yield "Method", str(method.get("name"))


def _batches(prediction: Prediction) -> list[float]:
    return sorted({run.expected_batch_size for run in prediction.runs})


def _chart(prediction: Prediction, found: PredictionOutcome | None = None) -> Chart:
    reference, batches = prediction.reference.expected_batch_size, _batches(prediction)
    along = [batches[0] * (reference / batches[0]) ** (place / (POINTS - 1)) for place in range(POINTS)]
    intervals = [prediction.interval(batch=batch) for batch in along]
    outcome = None if found is None or found.comparison is None else found.comparison.outcome
    predicted = Line(
        name="predicted", is_mark=outcome is None, is_scattered=True, x=[reference], y=[prediction.accuracy]
    )
    reached = [] if outcome is None else [Line(name="reached", is_mark=True, x=[reference], y=[outcome])]
    return Chart(
        element="prediction",
        title="Accuracy against the batch size",
        x_title="expected batch size, at the same noise for each record of a batch",
        y_title=f"accuracy on {prediction.evaluated_on}",
        x_format=",d",
        y_format=".1%",
        point="batches of %{x:,.0f}<br>%{y:.2%}",
        lines=(
            Line(
                name=f"{_confidence(prediction)} of single runs",
                is_area=True,
                x=[*along, *reversed(along)],
                y=[*(each.highest for each in intervals), *(each.lowest for each in reversed(intervals))],
            ),
            Line(name="the line", x=along, y=[prediction.law.at(batch) for batch in along]),
            Line(
                name="simulated runs, which protect nobody",
                is_scattered=True,
                x=[run.expected_batch_size for run in prediction.runs],
                y=[run.accuracy for run in prediction.runs],
            ),
            predicted,
            *reached,
        ),
        x_scale="log",
        x_ticks=(*batches, reference),
    )


def _confidence(prediction: Prediction) -> str:
    return f"{100 * prediction.confidence:.6g} %"


def _doublings(count: float) -> str:
    return f"{count:.3g} doubling{'' if count == 1 else 's'}"
