"""``lehr serve``: a list of the runs below a folder, and the page of each, on a small local web server.

The list reads the configuration and the metrics of each run, and again only when they have changed; ledgers, weights
and ``private/`` are not opened for it. Links are not followed, and a run that cannot be read is listed as broken. There
are two addresses, and nothing of a request becomes part of a path:

    /               the list of runs, without any script
    /runs/KEY       the page of a run; KEY is from the list

There is no password, so only this machine is answered. Web pages of others that are open in the same browser get
nothing either: requests under another host name (DNS rebinding) and background requests from other sites are refused,
and no answer may be read, framed or used by another origin.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import lehr
from lehr import validate
from lehr.certificates.guarantee import claim_from_json
from lehr.certificates.run_reading import State, config_from_json, read_evaluations, read_run
from lehr.errors import InvalidValue, LehrError, StoreError
from lehr.files import strict_json
from lehr.planning.plan import PRIVATE, Plan
from lehr.reports import run_page
from lehr.reports.page import Page, Paragraph, Table, note, render_page
from lehr.rounding import at_most
from lehr.run.shape import Evaluation, RunFiles

DEEPEST = 3  # folders below the one that is listed; those of a search lie two below
LIVELY_SECONDS = 60.0  # a run that wrote something this lately is called training
LARGEST_BYTES = 32 * 2**20  # of a file that is read; ours are a thousandth of it
NOTHING = "–"
COLUMNS = {
    "name": "Run",
    "state": "State",
    "method": "Method",
    "data": "Data",
    "epsilon": "ε, proven",
    "accuracy": "Accuracy",
    "steps": "Steps",
    "started": "Begun",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """A row of the list."""

    name: str
    kind: str  # "training", "open", "finished", "stopped" or "broken"
    state: str
    method: str = NOTHING
    data: str = NOTHING
    epsilon: str = NOTHING
    accuracy: str = NOTHING
    steps: str = NOTHING
    started: str = NOTHING

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def list_runs(folder: Path) -> dict[Path, RunRow]:
    """Every run below a folder by its directory, the newest first."""
    rows = []
    for directory in run_directories(folder):
        files = RunFiles(directory)
        journal = files.ledger.with_name(f"{files.ledger.name}-wal")
        paths = (files.config, files.metrics, files.model, files.ledger, journal)
        config, metrics, model, *ledger = map(_stat, paths)
        read = tuple(one and (one.st_mtime_ns, one.st_size, one.st_ino) for one in (config, metrics, model))
        name = directory.name if directory == folder.absolute() else str(directory.relative_to(folder.absolute()))
        listed = _row_of(directory, os.fsencode(name).decode(errors="replace"), read)
        written = max((one.st_mtime for one in (metrics, *ledger) if one and one.st_size), default=0.0)
        if listed.kind == "open" and time.time() - written <= LIVELY_SECONDS:
            listed = replace(listed, kind="training", state="training")
        rows.append((0.0 if config is None else -config.st_mtime, name, directory, listed))
    return {directory: listed for _, _, directory, listed in sorted(rows, key=lambda row: row[:2])}


def run_directories(folder: Path) -> Iterator[Path]:
    """Every folder with a configuration in it, some levels deep. Folders inside of a run are skipped."""
    if not folder.is_dir():
        raise StoreError(f"cannot list the runs in {folder}: there is no such folder")
    yield from _with_configuration(folder.absolute(), DEEPEST)


def _with_configuration(folder: Path, depth: int) -> Iterator[Path]:
    if os.path.lexists(RunFiles(folder).config):
        yield folder
    elif depth > 0:
        try:
            with os.scandir(folder) as entries:
                names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
        except OSError:  # removed meanwhile, or not readable
            return
        for name in names:
            yield from _with_configuration(folder / name, depth - 1)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def check_files(directory: Path) -> None:
    """Refuse links, which could lead anywhere, pipes, which never end, and files that are far too large."""
    files = RunFiles(directory)
    for path in (files.config, files.metrics, files.certificate, files.audit, files.ledger, files.model):
        status = _stat(path)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise StoreError("one of its files is a link, or no file")
        if status is not None and status.st_size > LARGEST_BYTES and path not in (files.model, files.ledger):
            raise StoreError("one of its files is far too large")


@lru_cache(maxsize=4096)
def _row_of(directory: Path, name: str, signature: object) -> RunRow:
    """The row of a run; ``signature`` changes with its files, which are then read again."""
    try:
        check_files(directory)
        return _row(RunFiles(directory), name)
    except LehrError as error:
        because = _without_paths(error, directory)
    except Exception:  # whatever is in one folder must not hide all others
        because = "it cannot be understood"
    return RunRow(kind="broken", name=name, state=f"broken: {because}")


def _without_paths(error: LehrError, directory: Path) -> str:
    return str(error).replace(f"{directory}{os.sep}", "").replace(str(directory), directory.name)


def _row(files: RunFiles, name: str) -> RunRow:
    config = strict_json.read(files.config, config_from_json)
    plan = None if config["plan"] is None else Plan.from_json(config["plan"])
    rows = read_evaluations(files.metrics)
    last = rows[-1] if rows else None
    state = _state(plan, last, has_model=files.model.exists())
    steps = NOTHING if last is None else f"{last.step:,}"
    if plan is not None:
        steps += f" of {plan.steps:,}" if plan.limit is None else f" of at most {plan.steps:,}"
    return RunRow(
        kind={State.GOING_ON: "open", State.STOPPED: "stopped"}.get(state, "finished"),
        name=name,
        state=state.value,
        method=str(config["method"]["name"]),
        data=str(config["data"].get("name", NOTHING)),
        epsilon=_epsilon(config, plan, last, is_over=state is not State.GOING_ON),
        accuracy=NOTHING if last is None else f"{last.accuracy_text} on {last.on}",
        steps=steps,
        started=str(config.get("created_on", NOTHING)),
    )


def _state(plan: Plan | None, last: Evaluation | None, *, has_model: bool) -> State:
    """As far as two small files tell; the page of the run looks into its ledger."""
    if not has_model:
        return State.GOING_ON
    if plan is None or last is None or last.step >= plan.steps:
        return State.COMPLETED
    if plan.limit is not None:
        return State.SPENT
    enough = plan.stops_at_accepted
    return State.STOPPED if enough is None or last.accepted < enough else State.ACCEPTED


def _epsilon(config: Mapping[str, Any], plan: Plan | None, last: Evaluation | None, *, is_over: bool) -> str:
    """What the whole plan costs, and what is spent of it. One trial of a search promises nothing by itself."""
    declared = config["data"].get("declared", PRIVATE)
    if plan is None or plan.simulates is not None or declared != PRIVATE or not plan.noise_multiplier > 0:
        return "no privacy"
    if config.get("trial_of") is not None:
        return "counted for its search"
    shape = (config.get("claims") or {}).get("proven")
    claim = plan.claim() if shape is None else claim_from_json("proven", shape)
    if not claim.is_proven or not math.isfinite(claim.epsilon):
        return "no privacy"
    if is_over:
        return at_most(claim.epsilon)
    return f"{NOTHING if last is None else at_most(last.epsilon_spent)} of {at_most(claim.epsilon)}"


# The pages.

RELOAD_SECONDS = 5
# No page may load anything, and be framed by nobody; those of runs have their script inside.
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:; "
    "style-src 'unsafe-inline'"
)
RUN_POLICY = f"{POLICY}; script-src 'unsafe-inline'"
LIST_NOTE = (
    "ε is at the δ of its run, which the run's page states. For an unfinished run it is the ε spent at the last "
    "evaluation, of the ε of the whole plan; a run that stops early is charged for the whole plan. A run is called "
    "training if it wrote something within the last minute. A new run appears as soon as it begins."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What is sent back."""

    body: str
    kind: str = "text/html"
    policy: str = POLICY
    status: HTTPStatus = HTTPStatus.OK


class Pages:
    """The list of a folder, and the page of each run in it."""

    def __init__(self, folder: Path) -> None:
        list_runs(folder)  # which refuses a folder that is none
        self.folder = folder
        self._lock = threading.Lock()

    def answer(self, address: str) -> Answer:
        """The answer to an address; its query is ignored."""
        path = address.partition("?")[0]
        with self._lock:  # one page at a time, however many are asked for
            if path == "/":
                return self._list()
            for directory in run_directories(self.folder):
                if path == run_address(directory):
                    return _run_answer(directory)
        return _error(HTTPStatus.NOT_FOUND, "There is no such page", "The run may have been moved or removed.")

    def _list(self) -> Answer:
        runs, title = list_runs(self.folder), f"Runs in {self.folder.absolute().name or self.folder}"
        table = Table(
            title=f"{len(runs)} run{'' if len(runs) == 1 else 's'}",
            style="cards",
            headings=[*COLUMNS.values()],
            rows=[[getattr(run, field) for field in COLUMNS] for run in runs.values()],
            links=[*map(run_address, runs)],
        )
        page = Page(
            title=title,
            heading=title,
            width="wide",
            introduction=[note(LIST_NOTE)],
            blocks=[table],
            footer=f"Lehr {lehr.__version__}. Only public values are served: no record, no key, no weights.",
            reload_seconds=RELOAD_SECONDS,
        )
        return Answer(body=render_page(page))


def run_address(directory: Path) -> str:
    """The address of a run's page, which has a hash in place of the path."""
    return f"/runs/{hashlib.sha256(os.fsencode(directory)).hexdigest()[:20]}"


def _run_answer(directory: Path) -> Answer:
    try:
        check_files(directory)
        return Answer(body=run_page.render(read_run(directory)), policy=RUN_POLICY)
    except LehrError as error:
        because = _without_paths(error, directory)
    except Exception as error:  # one broken run does not end the server
        because = f"its files cannot be understood ({type(error).__name__})"
    return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "This run cannot be shown", because)


def _error(status: HTTPStatus, heading: str, because: str) -> Answer:
    return Answer(
        body=render_page(Page(title=heading, heading=heading, introduction=[Paragraph(because)])), status=status
    )


# The server.

HOST = "127.0.0.1"
TIMEOUT = 20.0  # seconds, for a request to arrive and for its answer to be received
LAST_PORT = 65_535
HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(socketserver.ThreadingTCPServer):
    """Listens from its construction until ``server_close``; ``serve_forever`` answers. Port 0 is any free port."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a slow client does not delay the end

    def __init__(self, folder: Path, *, port: int) -> None:
        if validate.count(minimum=0, port=port) > LAST_PORT:
            raise InvalidValue("port", allowed=f"a number from 0 to {LAST_PORT}", given=port)
        self.pages = Pages(folder)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            because = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or error
            allowed = f"another one, or 0 for one that is free: {because}"
            raise InvalidValue("port", allowed=allowed, given=port) from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A closed connection is no error; anything else is one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            sys.stderr.write(f"lehr: a request could not be answered: {type(error).__name__}\n")

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL for a browser."""
        return f"http://{HOST}:{self.port}/"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = TIMEOUT

    def do_GET(self) -> None:
        """Answer with a page. Another site may link here, but not ask in the background."""
        hosts = [host.strip().lower() for host in self.headers.get_all("Host", [])]
        site, mode = self.headers.get("Sec-Fetch-Site", "none"), self.headers.get("Sec-Fetch-Mode", "navigate")
        if hosts not in ([f"{name}:{self.server.port}"] for name in (HOST, "localhost")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif site not in ("none", "same-origin") and mode != "navigate":
            self.send_error(HTTPStatus.FORBIDDEN)
        else:
            self._send(self.server.pages.answer(self.path))

    do_HEAD = do_GET  # noqa: N815

    def version_string(self) -> str:
        return "lehr"

    def log_message(self, *_: object) -> None:
        """Requests are not logged."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse with the same headers as any answer; nothing of the request is repeated."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._send(Answer(body=f"{status.value} {status.phrase}\n", kind="text/plain", status=status))

    def _send(self, answer: Answer) -> None:
        body = answer.body.encode(errors="replace")
        self.send_response(answer.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", answer.policy)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
