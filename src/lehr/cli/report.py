"""``lehr report``: a run as one web page, or several runs beside one another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.options import Json, Overwrite, example
from lehr.cli.release import TRAIN
from lehr.errors import InvalidValue
from lehr.reports import run_claims
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.planning.extrapolation import Prediction
    from lehr.reports.run_reading import RunRecord

COMPARED = "comparison.html"
EXAMPLE = example(TRAIN, "  lehr report first --to first.html\n")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folder of the run; several to compare.")],
    compare: Annotated[bool, typer.Option("--compare", help="Several runs on one page.")] = False,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Otherwise report.html in the run's folder, or {COMPARED}.")
    ] = None,
    prediction: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `lehr simulate` predicted for it, to be compared.")
    ] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a run as one web page that needs no network: its promise, its scores, its settings. It may still go on.

    With --compare, several runs are on one page, in one table and on the same charts.
    """
    if compare:
        path = _compare(runs, to=to, prediction=prediction, overwrite=overwrite, json=json)
    elif len(runs) == 1:
        path = _one(runs[0], to=to, prediction=prediction, overwrite=overwrite, json=json)
    else:
        raise InvalidValue("runs", allowed="one; several with --compare, on one page", given=len(runs))
    if open_it:
        typer.launch(path.resolve().as_uri())


def _one(run: Path, *, to: Path | None, prediction: Path | None, overwrite: bool, json: bool) -> Path:
    from lehr.files import whole_file
    from lehr.reports import run_page, run_position
    from lehr.reports.run_reading import read_run
    from lehr.run_shape import RunFiles

    if to is not None:
        whole_file.refuse_to_replace(to, overwrite=overwrite)
    with answering.working("Reading the run"):
        record, predicted = read_run(run), _read_prediction(prediction)
        page = run_page.render(record, prediction=predicted, position=run_position.position(record))
    path = RunFiles(run).report if to is None else to
    whole_file.write(path, page, overwrite=overwrite or to is None)
    _answer(path, record, predicted, json=json)
    return path


def _compare(runs: list[Path], *, to: Path | None, prediction: Path | None, overwrite: bool, json: bool) -> Path:
    from lehr.files import whole_file
    from lehr.reports import compare_page
    from lehr.reports.run_reading import read_run

    if len({os.path.realpath(run) for run in runs}) != len(runs) or len(runs) < 2:
        raise InvalidValue("runs", allowed="two or more with --compare, each once", given=[*map(str, runs)])
    if prediction is not None:
        raise InvalidValue("prediction", allowed="left out with --compare", given=str(prediction))
    path = Path(COMPARED) if to is None else to
    whole_file.refuse_to_replace(path, overwrite=overwrite)
    with answering.working("Reading the runs"):
        records = [read_run(run) for run in runs]
        page = compare_page.render(records)
    whole_file.write(path, page, overwrite=overwrite)
    if json:
        answering.as_json({"report": str(path), "runs": [_summary(record) for record in records]})
        return path
    answering.line(f"{answering.printable(str(path))}: {len(records)} runs")
    for record in records:
        answering.line(answering.printable(f"{record.run} ({record.directory}): {record.state.value}"))
        for line in _claims(record):
            answering.line(answering.printable(line))
    return path


def _summary(record: RunRecord) -> dict[str, object]:
    last = record.last
    return {
        "run": record.run,
        "folder": str(record.directory),
        "state": record.state.value,
        "method": record.method,
        "data": record.config["data"].get("name"),
        "declared": record.config["data"].get("declared"),
        **_said_of_privacy(record),
        "accuracy": None if last is None else last.accuracy,
        "steps": record.steps_charged,
        "accepted": None if last is None else last.accepted,
        "minutes": record.minutes,
    }


def _said_of_privacy(record: RunRecord) -> dict[str, object]:
    """What its page says, for programs. A run that promises nothing has nothing proven, and says why."""
    from lehr.reports import run_page

    return {
        "proven": run_claims.summary(run_page.promised(record)),
        "published": run_claims.summary(record.published),
        "promises_nothing": None if record.is_private else record.no_privacy_because,
    }


def _answer(path: Path, record: RunRecord, predicted: Prediction | None, *, json: bool) -> None:
    if json:
        answering.as_json(
            {
                "report": str(path),
                "run": record.run,
                "state": record.state.value,
                **_said_of_privacy(record),
                "prediction": _compared(predicted, record),
            }
        )
    else:
        answering.line(f"{answering.printable(str(path))}: {record.state.value}")
        for line in (*_claims(record), *_told(predicted, record)):
            answering.line(answering.printable(line))


def _claims(record: RunRecord) -> Iterator[str]:
    from lehr.reports import run_page

    promised = run_page.promised(record)
    if promised is None:
        yield f"  no privacy: {record.no_privacy_because}"
    else:
        yield f"  ε, proven: {at_most(promised.epsilon)} at δ = {exactly(promised.delta)}"
    if record.published is not None:
        yield f"  ε as published: {run_claims.as_published(record.published)}"


def _read_prediction(path: Path | None) -> Prediction | None:
    if path is None:
        return None
    from lehr.files import json_file
    from lehr.planning import extrapolation

    return json_file.read(path, extrapolation.from_json)


def _compared(prediction: Prediction | None, record: RunRecord) -> dict[str, object] | None:
    if prediction is None:
        return None
    from lehr.reports import prediction_words

    found = prediction_words.reached(prediction, record)
    numbers = found.comparison
    return {
        "verdict": found.verdict,
        "predicted": prediction.accuracy,
        "interval": [*prediction.interval()],
        "reached": None if numbers is None else numbers.outcome,
        "difference": None if numbers is None else numbers.difference,
        "not_compared_because": found.not_compared_because or None,
        "warnings": [*found.warnings],
    }


def _told(prediction: Prediction | None, record: RunRecord) -> Iterator[str]:
    if prediction is None:
        return
    from lehr.reports import prediction_words

    found = prediction_words.reached(prediction, record)
    if found.comparison is None:
        yield f"  not compared: {found.not_compared_because}"
    else:
        yield f"  {prediction_words.comparison_sentence(prediction, found.comparison)}"
    yield from (f"  warning: {warning}" for warning in found.warnings)
