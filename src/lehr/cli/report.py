"""``lehr report`` and ``lehr serve``: runs as web pages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lehr.certificates.guarantee import claim_summary, published_text
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.cli import common
from lehr.cli.common import TRAIN, Json, Overwrite, command_app, complain, refuse
from lehr.errors import InvalidValue
from lehr.files import atomic, strict_json
from lehr.planning import simulation
from lehr.planning.simulation import Prediction
from lehr.reports import compare_page, run_page, serving
from lehr.reports.prediction_page import compare_with_run, comparison_text
from lehr.reports.serving import COLUMNS, RunList
from lehr.rounding import at_most, exactly
from lehr.run.shape import RunFiles

COMPARED = "comparison.html"
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folder of a run; several with --compare.")],
    compare: Annotated[bool, typer.Option("--compare", help="Compare several runs on one page.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"By default report.html in the run's folder, or {COMPARED} with --compare."),
    ] = None,
    prediction: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The prediction of `lehr simulate`, to compare with the run.")
    ] = None,
    open_it: Open = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write the report of a run, finished or not: guarantee, scores and settings on one web page that works offline.

    With --compare, several runs are on one page, in one table and on the same charts.
    """
    if compare:
        path = _compare(runs, to=to, prediction=prediction, overwrite=overwrite, json=json)
    elif len(runs) == 1:
        path = _report(runs[0], to=to, prediction=prediction, overwrite=overwrite, json=json)
    else:
        raise InvalidValue("runs", allowed="one; several with --compare, on one page", given=len(runs))
    if open_it:
        typer.launch(path.resolve().as_uri())


def _report(run: Path, *, to: Path | None, prediction: Path | None, overwrite: bool, json: bool) -> Path:
    if to is not None:
        atomic.refuse_to_replace(to, overwrite=overwrite)
    with common.working("Reading the run"):
        record = read_run(run)
        predicted = None if prediction is None else strict_json.read(prediction, simulation.prediction_from_json)
        page = run_page.render(record, prediction=predicted, position=run_page.position(record))
    path = RunFiles(run).report if to is None else to
    atomic.write(path, page, overwrite=overwrite or to is None)
    state = record.state.value
    if json:
        compared = None if predicted is None else _compared(predicted, record)
        common.print_json(
            {"report": path, "run": record.run, "state": state, **_guarantee(record), "prediction": compared}
        )
        return path
    common.print_line(f"{path}: {state}")
    for line in _claims(record):
        common.print_line(line)
    if predicted is not None:
        outcome = compare_with_run(predicted, record)
        text = f"not compared: {outcome.not_compared_because}"
        if outcome.comparison is not None:
            text = comparison_text(predicted, outcome.comparison)
        for line in (text, *(f"warning: {warning}" for warning in outcome.warnings)):
            common.print_line(f"  {line}")
    return path


def _compare(runs: list[Path], *, to: Path | None, prediction: Path | None, overwrite: bool, json: bool) -> Path:
    if len({os.path.realpath(run) for run in runs}) != len(runs) or len(runs) < 2:
        raise InvalidValue("runs", allowed="two or more with --compare, each once", given=[*map(str, runs)])
    refuse("--compare", prediction=prediction)
    path = Path(COMPARED) if to is None else to
    atomic.refuse_to_replace(path, overwrite=overwrite)
    with common.working("Reading the runs"):
        records = [read_run(run) for run in runs]
        page = compare_page.render(records)
    atomic.write(path, page, overwrite=overwrite)
    if json:
        common.print_json({"report": path, "runs": [_summary(record) for record in records]})
        return path
    common.print_line(f"{path}: {len(records)} runs")
    for record in records:
        common.print_line(f"{record.run} ({record.directory}): {record.state.value}")
        for line in _claims(record):
            common.print_line(line)
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
        **_guarantee(record),
        "accuracy": last and last.accuracy,
        "steps": record.steps_charged,
        "accepted": last and last.accepted,
        "minutes": record.minutes,
    }


def _guarantee(record: RunRecord) -> dict[str, object]:
    """The claims of a run. If nothing is proven, the reason."""
    return {
        "proven": claim_summary(run_page.promised(record)),
        "published": claim_summary(record.published),
        "promises_nothing": None if record.is_private else record.no_privacy_because,
    }


def _claims(record: RunRecord) -> Iterator[str]:
    promised = run_page.promised(record)
    if promised is None:
        yield f"  no privacy: {record.no_privacy_because}"
    else:
        yield f"  ε, proven: {at_most(promised.epsilon)} at δ = {exactly(promised.delta)}"
    if record.published is not None:
        yield f"  ε as published: {published_text(record.published)}"


def _compared(prediction: Prediction, record: RunRecord) -> dict[str, object]:
    outcome = compare_with_run(prediction, record)
    numbers = outcome.comparison
    return {
        "verdict": outcome.verdict,
        "predicted": prediction.accuracy,
        "interval": [*prediction.interval()],
        "reached": numbers and numbers.outcome,
        "difference": numbers and numbers.difference,
        "not_compared_because": outcome.not_compared_because or None,
        "warnings": [*outcome.warnings],
    }


# lehr serve

HOST, PORT = "127.0.0.1", 8770
NARROW = ("name", "kind", "method", "epsilon", "accuracy", "steps")  # columns that fit a terminal
NO_PASSWORD = (
    "there is no password: whoever reaches this machine over the network can read the names, settings and scores of "
    "these runs, and when each evaluation arrives, which no ε covers; the connection is not encrypted"
)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with the runs.")] = Path("runs"),
    port: Annotated[int | None, typer.Option(help=f"{PORT} by default; 0 for any free port.")] = None,
    host: Annotated[str | None, typer.Option(help=f"The address to listen at; {HOST} by default.")] = None,
    beyond_this_machine: Annotated[
        bool, typer.Option("--beyond-this-machine", help="Allow a --host that others reach. There is no password.")
    ] = False,
    open_it: Open = False,
    list_them: Annotated[bool, typer.Option("--list", help="Print the list of runs once, and serve nothing.")] = False,
    json: Json = False,
) -> None:
    """Serve a web page that lists the runs below FOLDER, follows them while they train, and links to their reports.

    By default only this machine can connect. Only public values are served: no record, no key, no weights. Ctrl-C ends
    it.
    """
    if list_them:
        refuse("list", port=port, host=host, beyond_this_machine=beyond_this_machine or None, open=open_it or None)
        rows = [row.to_json() for row in RunList(folder).listed()]
        if json:
            common.print_json({"runs": [{field: row[field] for field in ("kind", *COLUMNS)} for row in rows]})
        else:
            headings = [COLUMNS.get(field, "State") for field in NARROW]
            common.print_table(f"Runs in {folder}", headings, [[row[field] for field in NARROW] for row in rows])
        return
    if json:
        raise InvalidValue("json", allowed="given beside --list", given=True)
    server = serving.server(
        folder,
        host=HOST if host is None else host,
        port=PORT if port is None else port,
        beyond_this_machine=beyond_this_machine,
    )
    if not server.is_local:
        complain(NO_PASSWORD)
    common.print_line(f"{folder}: {server.address} (Ctrl-C ends it)")
    try:
        if open_it:
            typer.launch(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:  # the usual end
        pass
    finally:
        server.server_close()


report_command = command_app(report, TRAIN, "  lehr report first --to first.html\n")
serve_command = command_app(serve, TRAIN, "  lehr serve . --list\n")
