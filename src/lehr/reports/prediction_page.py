"""A predicted accuracy as a page, as a section of the page of the predicted run, and as text for the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lehr.certificates.run_reading import RunRecord, State
from lehr.planning.simulation import Comparison, Interval, Law, Prediction, plan_words
from lehr.reports.chart import Chart, Line
from lehr.reports.page import Facts, Page, Paragraph, Section, note, render_page, warning
from lehr.rounding import at_most, exactly

POINTS = 40
BENDS_BELOW = 0.05
SAYS_LITTLE_ABOVE = 0.5
CAVEAT = (
    "The interval covers chance alone: it assumes that the law holds, and that the run is made as the simulated "
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

    prediction: Prediction
    comparison: Comparison | None
    not_compared_because: str
    warnings: tuple[str, ...]

    @property
    def verdict(self) -> str:
        if self.comparison is None:
            return "not compared"
        return "inside the interval" if self.comparison.is_inside else "outside the interval"

    def __str__(self) -> str:
        """What was predicted, what was reached, and how far apart they are."""
        comparison = self.comparison
        if comparison is None:
            return f"{prediction_text(self.prediction)} It is not compared: {self.not_compared_because}."
        interval = f"{_confidence(self.prediction)}: {interval_text(comparison.interval)}"
        predicted, reached = _percent(comparison.predicted), _percent(comparison.outcome)
        return (
            f"{predicted} was predicted ({interval}) and {reached} was reached: {self.verdict}, "
            f"{100 * comparison.difference:+.2f} points off."
        )


def compare_with_run(prediction: Prediction, record: RunRecord) -> PredictionOutcome:
    """Compare a prediction with the run; a run of another plan is refused."""
    prediction.refuse_other_plan(record.plan)
    rows = [row for row in record.evaluations if row.on == prediction.evaluated_on]
    accuracies = [row.accuracy for row in rows if row.accuracy is not None]
    because = ""
    if record.state is not State.COMPLETED:
        because = f"the run is not at the end of its plan: {record.state.value}"
    elif not accuracies:
        because = f"the run was not evaluated on {prediction.evaluated_on}, as the simulated ones were"
    warnings = [REVEALED] if prediction.may_reveal(record.config) else []
    if others := prediction.other_settings(record.config):
        warnings.append(f"The simulated runs had other settings than this run: {'; '.join(others)}.")
    return PredictionOutcome(
        prediction=prediction,
        comparison=None if because else prediction.compared_with(accuracies[-1:]),
        not_compared_because=because,
        warnings=(*warnings, *_objections(prediction)),
    )


def section(outcome: PredictionOutcome) -> Section:
    """The section of a run's page."""
    chart = _chart(outcome.prediction, None if outcome.comparison is None else outcome.comparison.outcome)
    return Section(
        title="Predicted and reached accuracy",
        badge=outcome.verdict,
        element="prediction",
        parts=[Paragraph(str(outcome)), *map(warning, outcome.warnings), chart],
    )


def render(prediction: Prediction) -> str:
    """The page of a prediction."""
    accuracy = _percent(prediction.accuracy)
    return render_page(
        Page(
            title=f"Predicted at batches of {prediction.reference.expected_batch_size:,.10g}: {accuracy}",
            heading="Predicted accuracy of a private run, by simulation",
            headline=accuracy,
            small=f"({_confidence(prediction)}: {interval_text(prediction.interval())})",
            introduction=[Paragraph(prediction_text(prediction)), *map(note, prediction_sentences(prediction))],
            blocks=[
                _chart(prediction),
                Facts(title="What it rests on", rows=[*prediction_facts(prediction).items()]),
            ],
            footer=f"Predicted on {prediction.predicted_on} with Lehr {prediction.library_version}.",
        )
    )


def prediction_text(prediction: Prediction) -> str:
    """The prediction in a sentence."""
    batch, interval = f"{prediction.reference.expected_batch_size:,.10g}", interval_text(prediction.interval())
    return (
        f"A run with batches of {batch} is predicted to reach {_percent(prediction.accuracy)} "
        f"({_confidence(prediction)}: {interval}), from {len(prediction.runs)} simulated runs that protect nobody."
    )


def prediction_sentences(prediction: Prediction) -> Iterator[str]:
    """What the prediction rests on, and what speaks against it."""
    yield f"{law_text(prediction.law)}. Single runs deviate from it by {100 * prediction.law.residual_std:.2f} points."
    if (interval := prediction.interval()).highest - interval.lowest > SAYS_LITTLE_ABOVE:
        yield "So wide an interval says next to nothing: more seeds or more batches narrow it."
    yield from _objections(prediction)
    yield CAVEAT


def _objections(prediction: Prediction) -> Iterator[str]:
    """Why the interval is too narrow, where that is known."""
    p_value = prediction.law.bend_p_value
    if prediction.is_beyond_all_or_nothing:
        yield "The law gives an accuracy outside [0, 1]: it does not hold there, and predicts nothing."
    if p_value is not None and p_value < BENDS_BELOW:
        yield (
            f"The simulated runs do not follow the law (p = {p_value:.2g}): the prediction is likely off by more than "
            "the interval."
        )


def law_text(law: Law) -> str:
    """The law in percent, as a formula."""
    sign = "−" if law.coefficient < 0 else "+"
    return f"Fitted law: accuracy = {_percent(law.limit)} {sign} {100 * abs(law.coefficient):,.3g} points / batch size"


def prediction_facts(prediction: Prediction) -> dict[str, str]:
    """The numbers behind it, and the records and the network where these are known."""
    reference, interval = prediction.reference, interval_text(prediction.interval())
    promised = f"{at_most(reference.bound().epsilon)} at δ = {exactly(reference.delta)}"
    facts = {
        "predicted": f"{_percent(prediction.accuracy)} ({_confidence(prediction)}: {interval})",
        "reference": plan_words(reference),
        "its ε on private records": f"{promised}, with {reference.records:,} records",
        "simulated runs": f"{len(prediction.runs)}, evaluated on {prediction.evaluated_on}",
        "their cost": f"{prediction.cost:.2g} times the records of one run of the reference",
        "extrapolated to": f"{reference.expected_batch_size / _batches(prediction)[-1]:.4g} times the largest "
        "simulated batch",
    }
    if prediction.setting:
        data, model, method = (prediction.setting[name] for name in ("data", "model", "method"))
        facts["records"] = f"{data.get('name')}, declared {data.get('declared')}"
        facts["network"] = f"{model.get('network') or 'a custom one'}, {model.get('parameters')} parameters"
        facts["method"] = str(method.get("name"))
    return facts


def interval_text(interval: Interval) -> str:
    """Both ends, rounded outwards."""
    lowest, highest = (round(1000 * end, 6) for end in (interval.lowest, interval.highest))  # tenths of a percent
    return f"{math.floor(lowest) / 10:.1f}–{math.ceil(highest) / 10:.1f} %"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _confidence(prediction: Prediction) -> str:
    return f"{100 * prediction.confidence:.6g} %"


def _batches(prediction: Prediction) -> list[float]:
    return sorted({run.expected_batch_size for run in prediction.runs})


def _chart(prediction: Prediction, reached: float | None = None) -> Chart:
    reference, batches = prediction.reference.expected_batch_size, _batches(prediction)
    along = [batches[0] * (reference / batches[0]) ** (place / (POINTS - 1)) for place in range(POINTS)]
    intervals = [prediction.interval(batch=batch) for batch in along]
    band = [*(each.highest for each in intervals), *(each.lowest for each in reversed(intervals))]
    sizes, accuracies = zip(*((run.expected_batch_size, run.accuracy) for run in prediction.runs), strict=True)
    lines = [
        Line(name=f"{_confidence(prediction)} of single runs", is_area=True, x=[*along, *reversed(along)], y=band),
        Line(name="the fitted law", x=along, y=[prediction.law.at(batch) for batch in along]),
        Line(name="simulated runs, which protect nobody", is_scattered=True, x=sizes, y=accuracies),
        Line(name="predicted", is_mark=reached is None, is_scattered=True, x=[reference], y=[prediction.accuracy]),
    ]
    if reached is not None:
        lines.append(Line(name="reached", is_mark=True, x=[reference], y=[reached]))
    return Chart(
        element="prediction",
        title="Accuracy against the batch size",
        note=SIMULATED,
        x_title="expected batch size, at the same noise for each record of a batch",
        y_title=f"accuracy on {prediction.evaluated_on}",
        x_format=",d",
        y_format=".1%",
        point="batches of %{x:,.0f}<br>%{y:.2%}",
        lines=tuple(lines),
        x_scale="log",
        x_ticks=(*batches, reference),
    )
