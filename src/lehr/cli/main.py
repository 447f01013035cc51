"""The command ``lehr``: its commands together."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

import lehr
from lehr.cli import (
    account,
    audit,
    budget,
    certificate,
    data,
    evaluate,
    failing,
    plan,
    predict,
    release,
    report,
    reproduce,
    search,
    serve,
    simulate,
    train,
)

app = typer.Typer(
    cls=failing.Commands,
    help="Train with differential privacy: plan, train, count, attack, certify and release.",
    epilog="Exit codes: 0 done; 1 the answer is no; 2 not understood, or a value not allowed; 3 a file cannot be used; "
    "4 an audit refutes a claim; 130 interrupted.\n\n" + plan.EXAMPLE,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=train.EXAMPLE)(train.train)
app.add_typer(data.app, name="data")
app.command(epilog=plan.EXAMPLE)(plan.plan)
app.command(epilog=simulate.EXAMPLE)(simulate.simulate)
app.command(epilog=search.EXAMPLE)(search.search)
app.command(epilog=account.EXAMPLE)(account.account)
app.command(epilog=report.EXAMPLE)(report.report)
app.command(epilog=serve.EXAMPLE)(serve.serve)
app.command(epilog=reproduce.EXAMPLE)(reproduce.reproduce)
app.command(epilog=audit.EXAMPLE)(audit.audit)
app.command(epilog=release.EXAMPLE)(release.release)
app.command(epilog=evaluate.EXAMPLE)(evaluate.evaluate)
app.command(epilog=predict.EXAMPLE)(predict.predict)
app.add_typer(budget.app, name="budget")
app.add_typer(certificate.app, name="certificate")


def main() -> None:
    """Run the command that the process was started with."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still shows the number
    app()


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lehr {lehr.__version__}")
        raise typer.Exit


@app.callback()
def _before_any_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":  # torchrun -m lehr.cli.main
    main()
