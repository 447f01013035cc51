"""The command ``lehr``. The module of a command is imported when the command is used."""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Exit, Option

import lehr
from lehr.cli.common import Commands, example

COMMANDS = {  # name: module, and the line on the overview
    "train": ("train", "Train a network on private records."),
    "recipe": ("recipe", "List recipes, and show what one decides."),
    "prior": ("prior", "Train weights to start from on random images, which costs no privacy."),
    "data": ("data", "List, download and check the built-in data sets."),
    "plan": ("plan", "Plan a private run: ε, noise, steps and batch size."),
    "simulate": ("plan", "Predict the accuracy of a private run from cheap runs."),
    "search": ("search", "Search for good settings of a run."),
    "account": ("plan", "Compute the ε of a run with every accountant."),
    "report": ("report", "Write the report of a run, or compare several."),
    "serve": ("report", "Serve a local web page that follows runs."),
    "audit": ("audit", "Attack a run or a method for a lower bound on ε."),
    "release": ("certificate", "Release the model of a run with its certificate."),
    "evaluate": ("evaluate", "Evaluate a released model on labelled records."),
    "predict": ("evaluate", "Predict classes with a released model."),
    "budget": ("budget", "Manage the privacy budget of a data set."),
    "certificate": ("certificate", "Issue, show and check certificates."),
}


class _Overview(Commands):
    """All commands, listed without importing them; each is imported when it is first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = typer.main.get_command(getattr(import_module(f"lehr.cli.{module}"), f"{cmd_name}_command"))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = typer.Typer(
    cls=_Overview,
    help="Train with differential privacy: plan, train, account, audit, certify and release.",
    epilog="Exit codes: 0 success; 1 the answer is no; 2 an invalid command or value; 3 a file cannot be used; "
    "4 an audit refutes a claim; 130 interrupted.\n\n"
    + example(
        "  lehr plan --epsilon 3 --delta 1e-5 --records 60000 --expected-batch-size 512 --noise-multiplier 1.23\n"
    ),
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command that the process was started with."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ε still shows the number
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lehr {lehr.__version__}")
        raise Exit


@app.callback()
def _options(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    del version


if __name__ == "__main__":  # torchrun -m lehr.cli.main
    main()
