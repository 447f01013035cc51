"""``lehr release``: from a run to a model that may leave the house."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.options import Json, example
from lehr.reports import run_claims
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.release import Released

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")]

TRAIN = """  lehr train --dataset digits --epsilon 8 --steps 5 --expected-batch-size 64 --run first \\
      --settings-chosen-on fixed
"""
RELEASE = "  lehr release first --to model\n"
EXAMPLE = example(TRAIN, RELEASE)


def release(
    run: RunFolder,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the model goes; a new folder.")],
    settings_chosen_on: Annotated[
        str | None, typer.Option(help="fixed or public: where that was not stated for the run.")
    ] = None,
    budget: Annotated[
        Path | None, typer.Option(metavar="BUDGET", help="The budget that paid for the run, where one did.")
    ] = None,
    allow_no_privacy: Annotated[
        bool, typer.Option("--allow-no-privacy", help="Release a model that promises nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Write the model of a run, its certificate and its card to a new folder, and destroy the run's key.

    Nothing private goes with it. The run is over after this: it can be neither resumed nor replayed.
    """
    from lehr.release import release

    with answering.working("Checking the certificate, and releasing"):
        released = release(
            run, to, settings_chosen_on=settings_chosen_on, budget=budget, allow_no_privacy=allow_no_privacy
        )
    (_answer_program if json else _answer_person)(released)


def _answer_program(released: Released) -> None:
    certificate = released.certificate
    answering.as_json(
        {
            "released": str(released.directory),
            "files": sorted(path.name for path in released.directory.iterdir()),
            "epsilon": None if certificate is None else certificate.epsilon,
            "delta": None if certificate is None else certificate.delta,
            "published": run_claims.summary(released.published),
        }
    )


def _answer_person(released: Released) -> None:
    certificate = released.certificate
    promise = "no privacy guarantee"
    if certificate is not None:
        promise = f"ε = {at_most(certificate.epsilon)} at δ = {exactly(certificate.delta)}, {certificate.claim.kind}"
    answering.line(f"{answering.printable(str(released.directory))}: {promise}")
    if released.published is not None:
        answering.line(answering.printable(f"ε as published: {run_claims.as_published(released.published)}"))
    for path in sorted(released.directory.iterdir()):
        answering.line(f"  {path.name}")
    answering.line("The run's key and everything else in its private folder are destroyed.")
