"""A prediction as one web page, or as a part of the page of the run that was predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lehr.planning.extrapolation import Prediction
from lehr.planning.simulation import simulate
from lehr.reports import page_frame, prediction_words
from lehr.reports.chart import Chart, Line
from lehr.reports.prediction_words import Reached, percent
from lehr.reports.run_reading import RunRecord

TEMPLATE = "prediction_page.html.jinja"
POINTS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the page of a run says about a prediction of it."""

    verdict: str
    sentence: str
    warnings: tuple[str, ...]
    chart: Chart


def part(prediction: Prediction, record: RunRecord) -> Part:
    """The prediction beside what the run reached."""
    found = prediction_words.reached(prediction, record)
    sentence = prediction_words.predicted(prediction)
    if found.comparison is not None:
        sentence = prediction_words.comparison_sentence(prediction, found.comparison)
    elif found.not_compared_because:
        sentence += f" It is not compared with anything: {found.not_compared_because}."
    return Part(
        verdict=found.verdict,
        sentence=sentence,
        warnings=found.warnings,
        chart=_chart(prediction, found),
    )


def render(prediction: Prediction) -> str:
    """The prediction as a page of its own. Everything but the script of plotly is escaped."""
    return page_frame.render(
        TEMPLATE,
        charts=[_chart(prediction)],
        accuracy=percent(prediction.accuracy),
        interval=prediction_words.between(prediction.interval()),
        confidence=f"{100 * prediction.confidence:.6g} %",
        reference=f"{prediction.reference.expected_batch_size:,.10g}",
        predicted=prediction_words.predicted(prediction),
        sentences=[*prediction_words.sentences(prediction)],
        facts=[*prediction_words.facts(prediction)],
        rows=[*_rows(prediction)],
        setting=[*_setting(prediction)],
        predicted_on=prediction.predicted_on,
        library_version=prediction.library_version,
    )


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
    yield "Records", f"{data.get('name')}, declared {data.get('declared')}"
    yield "Network", f"{model.get('network') or 'one of your own'}, {_counted(model.get('parameters'))}"
    yield "Method", str(method.get("name"))


def _counted(parameters: object) -> str:
    return f"{parameters:,} numbers" if isinstance(parameters, int) else "of a size that is not stated"


def _batches(prediction: Prediction) -> list[float]:
    return sorted({run.expected_batch_size for run in prediction.runs})


def _chart(prediction: Prediction, found: Reached | None = None) -> Chart:
    reference, batches = prediction.reference.expected_batch_size, _batches(prediction)
    along = [batches[0] * (reference / batches[0]) ** (place / (POINTS - 1)) for place in range(POINTS)]
    intervals = [prediction.interval(batch=batch) for batch in along]
    confidence = f"{100 * prediction.confidence:.6g} % of single runs"
    lines = [
        Line(
            name=confidence,
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
    ]
    outcome = None if found is None or found.comparison is None else found.comparison.outcome
    predicted = Line(
        name="predicted", is_mark=outcome is None, is_scattered=True, x=[reference], y=[prediction.accuracy]
    )
    lines.append(predicted)
    if outcome is not None:
        lines.append(Line(name="reached", is_mark=True, x=[reference], y=[outcome]))
    return Chart(
        element="prediction",
        x_title="expected batch size, at the same noise for each record of a batch",
        y_title=f"accuracy on {prediction.evaluated_on}",
        x_format=",d",
        y_format=".1%",
        point="batches of %{x:,.0f}<br>%{y:.2%}",
        has_markers=False,
        from_zero=False,
        lines=tuple(lines),
        x_scale="log",
        x_ticks=(*batches, reference),
    )
