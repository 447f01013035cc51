"""How a command fails: with an exit code that a script can use, and one line on standard error, never a traceback.

0   done, and the answer is yes
1   the answer is no: over budget, out of reach, nothing can count it, a certificate that does not hold
2   the command was not understood, or a value is not allowed
3   a file cannot be used, or the answer cannot be written
4   an audit refutes what is claimed, or has found that something is not as it is said to be
130 interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from lehr.cli import answering
from lehr.errors import InvalidValue, LehrError, StoreError

NO, NOT_UNDERSTOOD, UNUSABLE_FILE, REFUTED, INTERRUPTED = 1, 2, 3, 4, 130
LONGEST_MESSAGE = 1000


class Commands(TyperGroup):
    """A group of commands whose failures are one line, in whichever of its commands they happen."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run a command and leave the process with its exit code."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        extra |= {"prog_name": "lehr", "standalone_mode": False}
        try:
            code = super().main(args=given, **extra)
        except (LehrError, TyperException) as error:
            code = _fail(error, as_json="--json" in given)
        except UnicodeError:
            code = _fail(InvalidValue("text", allowed="UTF-8", given="other bytes"), as_json="--json" in given)
        except OSError as error:
            code = _fail_with_the_system(error, as_json="--json" in given)
        except typer.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def exit_code(error: Exception) -> int:
    """The code for an error."""
    match error:
        case InvalidValue() | TyperException():
            return NOT_UNDERSTOOD
        case StoreError():
            return UNUSABLE_FILE
        case _:
            return NO


@contextmanager
def that_goes_on() -> Iterator[None]:
    """Work that is kept: whoever interrupts it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        complain("stopped; the same command goes on from here")
        raise


def complain(message: str) -> None:
    """One line on standard error."""
    words = answering.printable(" ".join(message.split()))
    shortened = words if len(words) <= LONGEST_MESSAGE else words[:LONGEST_MESSAGE] + " …"
    typer.echo(f"lehr: {shortened}", err=True)


def _fail(error: LehrError | TyperException, *, as_json: bool) -> int:
    message = _usage(error) if isinstance(error, TyperException) else str(error)
    code = exit_code(error)
    complain(message)
    if as_json:
        answering.as_json({"error": {"kind": type(error).__name__, "message": message, "exit_code": code}})
    return code


def _fail_with_the_system(error: OSError, *, as_json: bool) -> int:
    if error.filename is not None:
        return _fail(StoreError(f"cannot use {error.filename}: {error.strerror}"), as_json=as_json)
    _give_up_output()
    complain(f"cannot write the answer: {error.strerror}")
    return UNUSABLE_FILE


def _give_up_output() -> None:
    """Send what is still to be written nowhere: Python would try once more at its end, and leave with its own code."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # no file, as in a test
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _usage(error: TyperException) -> str:
    context = getattr(error, "ctx", None)  # only those about a command have one
    hint = "" if context is None else f" (see: {context.command_path} --help)"
    return error.format_message().rstrip(".") + hint
