"""What all commands share: output, exit codes, options, and values given with ``--set``.

A command prints tables for people, or one JSON object with ``--json``. An error is one line on standard error.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from lehr.config import ALIASES, SUGGESTIONS, RunConfig, options
from lehr.config import Option as ConfigOption
from lehr.errors import InvalidValue, LehrError, MissingExtra, StoreError
from lehr.files import strict_json
from lehr.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.accounting.claims import Claim
    from lehr.certificates.certificate import Certificate


def print_json(shape: Mapping[str, object]) -> None:
    """One JSON object; a path becomes a string."""
    typer.echo(
        strict_json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in shape.items()})
    )


def print_line(text: str = "") -> None:
    """Lines as they are, neither wrapped nor coloured; characters that are not printable are escaped."""
    typer.echo("\n".join(map(printable, text.split("\n"))))


def print_answer(shape: Mapping[str, object], *lines: str, json: bool) -> None:
    """The JSON object for a program, or the lines for a person."""
    print_json(shape) if json else print_line("\n".join(lines))


def print_facts(title: str, rows: Mapping[str, str]) -> None:
    """A table of names and values."""
    print_table(title, (), [*rows.items()])


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a heading over each column; without headings, of names and values."""
    style: Any = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE}
    table = Table(title=title, show_header=bool(headings), **style)
    for place, heading in enumerate(headings or ("", "")):
        table.add_column(heading, overflow="fold", no_wrap=not headings and place == 0)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _console().print(table)


def _console() -> Console:
    return Console(markup=False, emoji=False, highlight=False)


def width() -> int:
    """The columns of the terminal, 80 where there is none."""
    return _console().width


def printable(text: str) -> str:
    """The text with control characters escaped, which could move the cursor or change colours."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


def epsilon_text(claim: Claim | Certificate) -> str:
    """An ε at its δ; a bound in fewer digits still holds."""
    return f"{at_most(claim.epsilon)} at δ = {exactly(claim.delta)}"


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on standard error, if that is a terminal."""
    with Console(stderr=True).status(what) if sys.stderr.isatty() else nullcontext():
        yield


# Errors and exit codes.

NO, NOT_UNDERSTOOD, UNUSABLE_FILE, REFUTED, INTERRUPTED = 1, 2, 3, 4, 130
LONGEST_MESSAGE = 1000


class _OneLineFailures:
    """An error is printed as one line; the exit code is its kind."""

    program = "lehr"

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run a command and exit with its code."""
        arguments = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra |= {"prog_name": self.program, "standalone_mode": False}
        as_json = "--json" in arguments
        try:
            code = super().main(args=arguments, **extra)  # type: ignore[misc]
        except (LehrError, TyperException) as error:
            code = _fail(error, as_json=as_json)
        except UnicodeError:
            code = _fail(InvalidValue("text", allowed="UTF-8", given="other bytes"), as_json=as_json)
        except OSError as error:
            if error.filename is not None:
                code = _fail(StoreError(f"cannot use {error.filename}: {error.strerror}"), as_json=as_json)
            else:
                _discard_output()
                complain(f"cannot write the answer: {error.strerror}")
                code = UNUSABLE_FILE
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


class Commands(_OneLineFailures, TyperGroup):
    """A group of commands."""


class Command(_OneLineFailures, TyperCommand):
    """A program with a single command."""

    program = "python -m experiments"


def exit_code(error: Exception) -> int:
    """The code for an error."""
    match error:
        case InvalidValue() | MissingExtra() | TyperException():
            return NOT_UNDERSTOOD
        case StoreError():
            return UNUSABLE_FILE
        case _:
            return NO


@contextmanager
def resumable() -> Iterator[None]:
    """On Ctrl-C, say that the same command continues the work."""
    try:
        yield
    except KeyboardInterrupt:
        complain("stopped; the same command goes on from here")
        raise


def complain(message: str) -> None:
    """One line on standard error."""
    words = printable(" ".join(message.split()))
    shortened = words if len(words) <= LONGEST_MESSAGE else words[:LONGEST_MESSAGE] + " …"
    typer.echo(f"lehr: {shortened}", err=True)


def _fail(error: LehrError | TyperException, *, as_json: bool) -> int:
    message, code = str(error), exit_code(error)
    if isinstance(error, TyperException):
        context = getattr(error, "ctx", None)  # only errors about a command have one
        message = _with_suggestion(error.format_message().rstrip("."))
        message += "" if context is None else f" (see: {context.command_path} --help)"
    complain(message)
    if as_json:
        print_json({"error": {"kind": type(error).__name__, "message": message, "exit_code": code}})
    return code


_UNKNOWN = re.compile(r"No such option: --([a-z][a-z0-9_-]*)")


def _with_suggestion(message: str) -> str:
    """The message; for an option that has another name in another library, with the name that it has here."""
    unknown = _UNKNOWN.match(message)
    found = None if unknown is None else options().get(SUGGESTIONS.get(unknown[1].replace("-", "_"), ""))
    return message if unknown is None or found is None else f"{unknown[0]} (Possible options: {flags_of(found)[0]})"


def _discard_output() -> None:
    """Discard buffered output. Python would flush it again at exit, fail, and replace the exit code."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # no file, as in a test
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


# Options.

Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="An option or a setting of the method; TABLE.KEY=VALUE for any key of a file.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files, but never a budget.")]


def config_options(*names: str, tree: type[RunConfig] = RunConfig) -> Callable[[Function], Function]:
    """Replace the ``**fields`` of a command by the options of these fields of ``RunConfig``; by default all."""
    known = options(tree)
    chosen = [known[name] for name in names] if names else [each for each in known.values() if each.in_cli]

    def decorate(command: Function) -> Function:
        signature = inspect.signature(command, eval_str=True)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        arguments = [each for each in own if each.name == "config"]
        fields = [_parameter(each) for each in chosen]
        parameters = [*arguments, *fields, *(each for each in own if each.name != "config")]
        keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in keyword_only}
        return command

    return decorate


def flags_of(field: ConfigOption) -> tuple[str, ...]:
    """The command-line names of a field, its own first."""
    other = [alias for alias, name in ALIASES.items() if name == field.keyword]
    return field.flags or tuple("--" + name.replace("_", "-") for name in (field.keyword, *other))


def _parameter(field: ConfigOption) -> inspect.Parameter:
    """The option of a field, with the names that it has in other libraries."""
    kind = str if field.type is Any else field.type
    option = typer.Option(*flags_of(field), help=field.help, metavar=field.metavar)
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.keyword, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


# Lines of examples that several help texts share.
TRAIN = """  lehr train --dataset digits --epsilon 8 --steps 5 --expected-batch-size 64 --run first \\
      --settings-chosen-on fixed
"""
RELEASE = "  lehr release first --to model\n"


def command_app(function: Callable[..., Any], *examples: str) -> typer.Typer:
    """An app of one command, with examples at the foot of its help text."""
    app = typer.Typer(cls=Commands, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=example(*examples))(function)
    return app


def group_app(about: str, *examples: str) -> typer.Typer:
    """An app of several commands, with examples at the foot of its help text."""
    return typer.Typer(cls=Commands, help=about, epilog=example(*examples), rich_markup_mode=None)


def example(*lines: str) -> str:
    """Commands at the foot of a help text, each on its own line."""
    return "\b\nExample:\n" + "".join(lines)


def required(**named: Value | None) -> Value:
    """An option's value, or an error that names it."""
    [(name, value)] = named.items()
    if value is None:
        raise InvalidValue(name, allowed=f"given (--{name.replace('_', '-')})", given=None)
    return value


def refuse(beside: str, **named: object) -> None:
    """An error if an option is given that contradicts or repeats ``beside``."""
    for name, value in named.items():
        if value is not None:
            given = str(value) if isinstance(value, Path) else value
            raise InvalidValue(name, allowed=f"left out beside {beside}", given=given)


_SETTING = re.compile(r"(?:([a-z]+)\.)?([a-z][a-z_]*)=(.+)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z][\w .()/,-]*")


def parse_settings(settings: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The tables of ``key=value`` or ``table.key=value``, with values as TOML has them; words need no quotation marks.

    A key without a table is the option of that name, or else a setting of the method.
    """
    tables: dict[str, dict[str, Any]] = {}
    for setting in settings:
        allowed = 'key=value or table.key=value, each key once, with a value as in a file: 4, true, [1, 2] or "word"'
        refused = InvalidValue("set", allowed=allowed, given=setting)
        if (form := _SETTING.fullmatch(setting.strip())) is None:
            raise refused
        table, key, text = form.groups()
        option = options().get(ALIASES.get(key, key)) if table is None else None
        if option is not None:
            table, key = option.table, option.key
        keys = tables.setdefault(table or "method", {})
        try:
            read = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            read = {"value": text.strip()} if _WORD.fullmatch(text.strip()) else {}
        if read.keys() != {"value"} or key in keys:
            raise refused
        keys[key] = read["value"]
    return tables
