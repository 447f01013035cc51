"""What a command prints: tables for people, or one JSON object for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lehr.files import strict_json


def as_json(shape: Mapping[str, object]) -> None:
    """One JSON object on standard output."""
    typer.echo(strict_json.dumps(shape))


def line(text: str = "") -> None:
    """A line as it is, neither wrapped nor coloured."""
    typer.echo(text)


def facts(title: str, rows: Mapping[str, str]) -> None:
    """A table of names and values."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(_cell(name), _cell(value))
    _console().print(table)


def listing(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table with a heading over each column."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    _console().print(table)


def numbers(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, is_number: Sequence[bool]) -> None:
    """A table of many columns: no word of it is broken where the window is wide enough for that."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, padding=(0, 1, 0, 0))
    columns = [*zip(headings, *rows, strict=True)]
    room = width() - 2 * len(columns) - 1  # a space on either side of each, and one at the end
    widths = _widths(columns, room, is_number=is_number)
    for heading, own, is_right in zip(headings, widths, is_number, strict=True):
        table.add_column(heading, overflow="fold", width=own, justify="right" if is_right else "left")
    for row in rows:
        table.add_row(*map(_cell, row))
    _console().print(table)


def _widths(columns: Sequence[Sequence[str]], room: int, *, is_number: Sequence[bool]) -> Sequence[int | None]:
    """As wide as its longest word; what is left goes to whichever has the most lines, and to numbers before text.

    Where not even the words fit, no width is said.
    """
    found = [*map(_longest_word, columns)]
    longest = [max(map(len, column[1:]), default=1) for column in columns]
    if sum(found) > room:
        return [None] * len(columns)
    for _ in range(room - sum(found)):
        broken = [place for place, own in enumerate(found) if own < longest[place]]
        if not broken:
            break
        found[max(broken, key=lambda place: (is_number[place], longest[place] / found[place]))] += 1
    return found


def _longest_word(texts: Sequence[str]) -> int:
    return max((len(word) for text in texts for word in text.split()), default=1)


def width() -> int:
    """The columns of the terminal, 80 where there is none."""
    return _console().width


def printable(text: str) -> str:
    """The text with everything that could move a cursor or change a colour written out."""
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape").decode() for mark in text)


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on standard error while something takes its time, where a person is looking."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(what):
        yield


def _console() -> Console:
    return Console(markup=False, emoji=False, highlight=False)


def _cell(text: str) -> Text:
    return Text(printable(text))
