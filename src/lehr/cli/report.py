"""``lehr report`` and ``lehr serve``: runs as web pages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from lehr.certificates.guarantee import claim_summary, published_text
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.cli import common
from lehr.errors import InvalidValue
from lehr.files import atomic, strict_json
from lehr.planning.simulation import prediction_from_json
from lehr.reports import run_page
from lehr.reports.prediction_page import PredictionOutcome, compare_with_run
from lehr.reports.serving import COLUMNS, Server, list_runs
from lehr.run.shape import RunFiles

COMPARED = "comparison.html"
Open = Annotated[bool, Option("--open", help="Open the page in the browser.")]


def report(
    runs: Annotated[list[Path], Argument(metavar="RUN...", help="The folder of a run; several with --compare.")],
    compare: Annotated[bool, Option("--compare", help="Compare several runs on one page.")] = False,
    to: Annotated[
        Path | None,
        Option(metavar="FILE", help=f"By default report.html in the run's folder, or {COMPARED} with --compare."),
    ] = None,
    prediction: Annotated[
        Path | None, Option(metavar="FILE", help="The prediction of `lehr simulate`, to compare with the run.")
    ] = None,
    baseline: Annotated[
        Path | None, Option(metavar="RUN", help="A run of the same network without privacy, to show its accuracy.")
    ] = None,
    open_it: Open = False,
    overwrite: common.Overwrite = False,
    json: common.Json = False,
) -> None:
    """Write the report of a run, finished or not: guarantee, scores and settings on one web page that works offline.

    With --compare, several runs are on one page, in one table and on the same charts. The accuracy of a --baseline
    was computed without noise: ε does not cover it.
    """
    _check_runs(runs, compare=compare)
    if compare:
        common.refuse("--compare", prediction=prediction, baseline=baseline)
    path = to or (Path(COMPARED) if compare else RunFiles(runs[0]).report)
    is_own = to is None and not compare  # the page in a run's own folder is always renewed
    if not is_own:
        atomic.refuse_to_replace(path, overwrite=overwrite)
    outcome = None
    with common.working("Reading the runs"):
        records = [read_run(run) for run in runs]
        if compare:
            page = run_page.render_comparison(records)
        else:
            predicted = None if prediction is None else strict_json.read(prediction, prediction_from_json)
            outcome = None if predicted is None else compare_with_run(predicted, records[0])
            plain = None if baseline is None else read_run(baseline)
            page = run_page.render(records[0], outcome=outcome, baseline=plain)
    atomic.write(path, page, overwrite=overwrite or is_own)
    shape = {"runs": [*map(_summary, records)]} if compare else _shape(records[0], outcome)
    common.print_answer({"report": path, **shape}, *_lines(path, records, outcome), json=json)
    if open_it:
        typer.launch(path.resolve().as_uri())


def _check_runs(runs: Sequence[Path], *, compare: bool) -> None:
    if not compare and len(runs) > 1:
        raise InvalidValue("runs", allowed="one; several with --compare, on one page", given=len(runs))
    if compare and (len(runs) < 2 or len({os.path.realpath(run) for run in runs}) != len(runs)):
        raise InvalidValue("runs", allowed="two or more with --compare, each once", given=[*map(str, runs)])


def _lines(path: Path, records: Sequence[RunRecord], outcome: PredictionOutcome | None) -> Iterator[str]:
    yield f"{path}: {records[0].state.value if len(records) == 1 else f'{len(records)} runs'}"
    for record in records:
        if len(records) > 1:
            yield f"{record.run} ({record.directory}): {record.state.value}"
        claim = run_page.claim_of(record)
        if claim is None:
            yield f"  no privacy: {record.no_privacy_because}"
        else:
            yield f"  ε, proven: {common.epsilon_text(claim)}"
        if record.published is not None:
            yield f"  ε as published: {published_text(record.published)}"
    if outcome is not None:
        yield f"  {outcome}"
        yield from (f"  warning: {warning}" for warning in outcome.warnings)


def _guarantee(record: RunRecord) -> dict[str, object]:
    """The claims of a run. If nothing is proven, the reason."""
    return {
        "proven": claim_summary(run_page.claim_of(record)),
        "published": claim_summary(record.published),
        "promises_nothing": None if record.is_private else record.no_privacy_because,
    }


def _shape(record: RunRecord, outcome: PredictionOutcome | None) -> dict[str, Any]:
    shape = {"run": record.run, "state": record.state.value, **_guarantee(record), "prediction": None}
    if outcome is not None:
        comparison = outcome.comparison
        shape["prediction"] = {
            "verdict": outcome.verdict,
            "predicted": outcome.prediction.accuracy,
            "interval": [*outcome.prediction.interval()],
            "reached": comparison and comparison.outcome,
            "difference": comparison and comparison.difference,
            "not_compared_because": outcome.not_compared_because or None,
            "warnings": [*outcome.warnings],
        }
    return shape


def _summary(record: RunRecord) -> dict[str, object]:
    last, data = record.last, record.config["data"]
    return {
        "run": record.run,
        "folder": str(record.directory),
        "state": record.state.value,
        "method": record.method,
        "data": data.get("name"),
        "declared": data.get("declared"),
        **_guarantee(record),
        "accuracy": last and last.accuracy,
        "steps": record.steps_charged,
        "accepted": last and last.accepted,
        "minutes": record.minutes,
    }


# lehr serve

PORT = 8770
NARROW = ("name", "kind", "method", "epsilon", "accuracy", "steps")  # columns that fit a terminal


def serve(
    folder: Annotated[Path, Argument(metavar="[FOLDER]", help="The folder with the runs.")] = Path("runs"),
    port: Annotated[int | None, Option(help=f"{PORT} by default; 0 for any free port.")] = None,
    open_it: Open = False,
    list_them: Annotated[bool, Option("--list", help="Print the list of runs once, and serve nothing.")] = False,
    json: common.Json = False,
) -> None:
    """Serve a web page that lists the runs below FOLDER, follows them while they train, and links to their reports.

    Only this machine can connect. Only public values are served: no record, no key, no weights. Ctrl-C ends it.
    """
    if list_them:
        common.refuse("list", port=port, open=open_it or None)
        rows = [run.to_json() for run in list_runs(folder).values()]
        if json:
            common.print_json({"runs": [{field: row[field] for field in ("kind", *COLUMNS)} for row in rows]})
        else:
            headings = [COLUMNS.get(field, "State") for field in NARROW]
            common.print_table(f"Runs in {folder}", headings, [[row[field] for field in NARROW] for row in rows])
        return
    if json:
        raise InvalidValue("json", allowed="given beside --list", given=True)
    server = Server(folder, port=PORT if port is None else port)
    common.print_line(f"{folder}: {server.address} (Ctrl-C ends it)")
    try:
        if open_it:
            typer.launch(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:  # the usual end
        pass
    finally:
        server.server_close()


report_command = common.command_app(report, common.TRAIN, "  lehr report first --to first.html\n")
serve_command = common.command_app(serve, common.TRAIN, "  lehr serve . --list\n")
