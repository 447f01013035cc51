"""``lehr report``: a run as one web page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.options import Json, Overwrite, example
from lehr.cli.release import TRAIN, RunFolder
from lehr.reports import run_claims
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.reports.run_reading import RunRecord

EXAMPLE = example(TRAIN, "  lehr report first --to first.html\n")


def report(
    run: RunFolder,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Otherwise report.html in the run's folder.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Write a run as one web page that needs no network: its promise, its scores, its settings. It may still go on."""
    from lehr.files import whole_file
    from lehr.reports import run_page
    from lehr.reports.run_reading import read_run
    from lehr.run_shape import RunFiles

    if to is not None:
        whole_file.refuse_to_replace(to, overwrite=overwrite)
    with answering.working("Reading the run"):
        record = read_run(run)
        page = run_page.render(record)
    path = RunFiles(run).report if to is None else to
    whole_file.write(path, page, overwrite=overwrite or to is None)
    if json:
        answering.as_json(
            {
                "report": str(path),
                "run": record.run,
                "state": record.state.value,
                "proven": run_claims.summary(record.proven),
                "published": run_claims.summary(record.published),
                "promises_nothing": record.promises_nothing,
            }
        )
    else:
        answering.line(f"{answering.printable(str(path))}: {record.state.value}")
        for line in _claims(record):
            answering.line(answering.printable(line))
    if open_it:
        typer.launch(path.resolve().as_uri())


def _claims(record: RunRecord) -> Iterator[str]:
    promised = record.proven if record.certificate is None else record.certificate.claim.claim
    if promised is None or not record.is_private:
        yield f"  no privacy: {record.no_privacy_because}"
    else:
        yield f"  ε, proven: {at_most(promised.epsilon)} at δ = {exactly(promised.delta)}"
    if record.published is not None:
        yield f"  ε as published: {run_claims.as_published(record.published)}"
