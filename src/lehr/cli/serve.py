"""``lehr serve``: a local page that lists runs and follows them while they train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.failing import complain
from lehr.cli.options import Json, example, refuse
from lehr.cli.release import TRAIN
from lehr.errors import InvalidValue

if TYPE_CHECKING:
    from lehr.reports.serving import Server

HOST, PORT = "127.0.0.1", 8770
NARROW = ("name", "kind", "method", "epsilon", "accuracy", "steps")  # what a terminal has room for
EXAMPLE = example(TRAIN, "  lehr serve . --list\n")
WARNING = (
    "there is no password: whoever reaches this machine over the network can read the names, settings and scores of "
    "these runs, and when each evaluation arrives, which no ε covers; the connection is not encrypted"
)


def serve(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where the runs are.")] = Path("runs"),
    port: Annotated[int | None, typer.Option(help=f"{PORT} if left out; 0 for one that is free.")] = None,
    host: Annotated[str | None, typer.Option(help=f"The address to listen at; {HOST} if left out.")] = None,
    beyond_this_machine: Annotated[
        bool, typer.Option("--beyond-this-machine", help="Allow a --host that others reach. There is no password.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    list_them: Annotated[bool, typer.Option("--list", help="Print the list once instead, and serve nothing.")] = False,
    json: Json = False,
) -> None:
    """Serve a page that lists the runs below FOLDER, follows them while they train, and leads to the report of each.

    It is for this machine alone, unless you say otherwise. Only public values are served: no record, no key, no
    weights. Ctrl-C ends it.
    """
    if list_them:
        refuse("list", port=port, host=host, beyond_this_machine=beyond_this_machine or None, open=open_it or None)
        _print(folder, json=json)
        return
    if json:
        raise InvalidValue("json", allowed="given beside --list", given=True)
    from lehr.reports import serving

    server = serving.server(
        folder,
        host=HOST if host is None else host,
        port=PORT if port is None else port,
        beyond_this_machine=beyond_this_machine,
    )
    if not server.is_local:
        complain(WARNING)
    answering.line(f"{answering.printable(str(folder))}: {server.address} (Ctrl-C ends it)")
    _serve(server, open_it=open_it)


def _print(folder: Path, *, json: bool) -> None:
    from lehr.reports.run_list import COLUMNS, RunList

    rows = [row.to_json() for row in RunList(folder).listed()]
    if json:
        answering.as_json({"runs": [{field: row[field] for field in ("kind", *COLUMNS)} for row in rows]})
    else:
        headings = {field: COLUMNS.get(field, "State") for field in NARROW}
        answering.listing(f"Runs in {folder}", [*headings.values()], [[row[field] for field in NARROW] for row in rows])


def _serve(server: Server, *, open_it: bool) -> None:
    """Until somebody ends it, which is the usual end and no failure."""
    try:
        if open_it:
            typer.launch(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
