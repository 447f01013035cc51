"""What ``lehr serve`` answers: a closed table of addresses. Nothing of a request is ever made part of a path.

/               the list of runs
/runs.json      the same for the script of the list
/list.js        that script
/runs/KEY       the page of a run, made when it is asked for; KEY is from the list
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from pathlib import Path

import lehr
from lehr.errors import LehrError
from lehr.files import strict_json
from lehr.reports import page_frame
from lehr.reports.run_list import COLUMNS, RunList, without_paths

LIST, TROUBLE, SCRIPT = "serve_page.html.jinja", "serve_trouble.html.jinja", "serve_page.js"
_NOTHING_ELSE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:; "
LIST_POLICY = _NOTHING_ELSE + "script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'"
RUN_POLICY = _NOTHING_ELSE + "script-src 'unsafe-inline'; style-src 'unsafe-inline'"  # one file, its script inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is sent back."""

    body: str
    kind: str = "text/html"
    policy: str = LIST_POLICY
    status: HTTPStatus = HTTPStatus.OK


class Pages:
    """The list of a folder, and the page of each run in it."""

    def __init__(self, runs: RunList) -> None:
        self.runs = runs
        self._turn = threading.Lock()

    def answer(self, address: str) -> Answer:
        """The answer to an address; its query is not looked at."""
        path = address.partition("?")[0]
        before, _, key = path.rpartition("/")
        if before == "/runs":
            return self._run(key)
        fixed: dict[str, Callable[[], Answer]] = {"/": self._list, "/runs.json": self._json, "/list.js": _script}
        return fixed.get(path, _not_found)()

    def _list(self) -> Answer:
        rows = [row.to_json() for row in self.runs.listed()]
        folder = self.runs.folder.name or str(self.runs.folder)
        return Answer(
            body=page_frame.render(LIST, charts=[], rows=rows, columns=COLUMNS, folder=folder, version=lehr.__version__)
        )

    def _json(self) -> Answer:
        rows = [row.to_json() for row in self.runs.listed()]
        return Answer(body=strict_json.dumps({"runs": rows}), kind="application/json")

    def _run(self, key: str) -> Answer:
        directory = self.runs.directory(key)
        if directory is None:
            return _not_found()
        with self._turn:  # one page at a time, however many are asked for
            try:
                return Answer(body=_page(directory), policy=RUN_POLICY)
            except LehrError as error:
                return _cannot_be_shown(without_paths(error, directory))
            except Exception as error:  # a run that nobody can understand is still not the end of the server
                return _cannot_be_shown(f"its files cannot be understood ({type(error).__name__})")


def _page(directory: Path) -> str:
    from lehr.reports import run_page
    from lehr.reports.run_reading import read_run

    return run_page.render(read_run(directory))


def _script() -> Answer:
    return Answer(body=files("lehr.reports").joinpath(SCRIPT).read_text(encoding="utf-8"), kind="text/javascript")


def _not_found() -> Answer:
    return _trouble(HTTPStatus.NOT_FOUND, "There is no such page", "The run may have been moved or removed.")


def _cannot_be_shown(because: str) -> Answer:
    return _trouble(HTTPStatus.INTERNAL_SERVER_ERROR, "This run cannot be shown", because)


def _trouble(status: HTTPStatus, heading: str, because: str) -> Answer:
    return Answer(body=page_frame.render(TROUBLE, charts=[], heading=heading, because=because), status=status)
