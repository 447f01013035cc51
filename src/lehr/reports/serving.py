"""``lehr serve``: a list of the runs below a folder, and the page of each, on a small local web server.

The list reads two small files of each run, and again only when they have changed; ledgers, weights and ``private/`` are
never opened. Links are not followed, and a run that cannot be read is listed as broken. The addresses are a closed
table, and nothing of a request becomes part of a path:

    /               the list of runs
    /runs.json      the same for the script of the list
    /list.js        that script
    /runs/KEY       the page of a run; KEY is from the list

There is no password, so by default only this machine is answered. Web pages of others that are open in the same browser
get nothing either: requests under another host name (DNS rebinding) and background requests from other sites are
refused, and no answer may be read, framed or used by another origin.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import math
import os
import socket
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import lehr
from lehr import validate
from lehr.certificates.guarantee import claim_from_json
from lehr.certificates.run_reading import State, config_from_json, read_run
from lehr.errors import InvalidValue, LehrError, StoreError
from lehr.files import strict_json
from lehr.planning.plan import PRIVATE, Plan
from lehr.reports import run_page
from lehr.reports.page import Page, Paragraph, Section, Table, note, render_page, resource
from lehr.rounding import at_most
from lehr.run.shape import RunFiles

DEEPEST = 3  # folders below the one that is listed; those of a search lie two below
LIVELY_SECONDS = 60.0  # a run that wrote something this lately is called training
LARGEST_BYTES = 32 * 2**20  # of a file that is read; ours are a thousandth of it
TAIL_BYTES = 2**16  # of the rows of metrics; the last one is looked for in these
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
class ListedRun:
    """A row of the list. ``key`` identifies the run to a browser; a browser never sends a path."""

    key: str
    kind: str  # "training", "open", "finished", "stopped" or "broken"
    name: str
    state: str
    method: str = NOTHING
    data: str = NOTHING
    epsilon: str = NOTHING
    accuracy: str = NOTHING
    steps: str = NOTHING
    started: str = NOTHING

    def to_json(self) -> dict[str, str]:
        return asdict(self)


class _Found(NamedTuple):
    """The folder of a run, and the state of its files."""

    directory: Path
    name: str
    signature: tuple[tuple[int, ...] | None, ...]
    problem: str  # why it is not read
    begun_at: float
    written_at: float

    @property
    def key(self) -> str:
        return hashlib.sha256(os.fsencode(self.name)).hexdigest()[:20]


class RunList:
    """The runs below one folder. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise StoreError(f"cannot list the runs in {folder}: there is no such folder")
        self.folder = folder.absolute()
        self._known: dict[str, tuple[_Found, ListedRun]] = {}
        self._lock = threading.Lock()

    def listed(self) -> list[ListedRun]:
        """Every run as it is now, the newest first. A run is read again only if its files have changed."""
        with self._lock:
            known = {}
            for found in _runs(self.folder):
                before = self._known.get(found.key)
                is_same = before is not None and before[0].signature == found.signature
                known[found.key] = (found, before[1] if before is not None and is_same else _listed(found))
            self._known = known
            ordered = sorted(known.values(), key=lambda pair: (-pair[0].begun_at, pair[0].name))
            return [_with_age(listed, found, now=time.time()) for found, listed in ordered]

    def directory(self, key: str) -> Path | None:
        """The folder of a run that is listed, and may be read."""
        if key not in self._known:
            self.listed()
        if key not in self._known:
            return None
        found, _ = self._known[key]
        return None if found.problem or _found(found.directory, found.name).problem else found.directory


def _runs(folder: Path) -> Iterator[_Found]:
    """Every folder with a configuration in it. Folders inside of a run are skipped."""
    if os.path.lexists(RunFiles(folder).config):
        yield _found(folder, os.fspath(folder.name) or ".")
    else:
        yield from _below(folder, "", DEEPEST)


def _below(folder: Path, before: str, depth: int) -> Iterator[_Found]:
    try:
        with os.scandir(folder) as found:
            names = sorted(e.name for e in found if e.is_dir(follow_symlinks=False) and not e.name.startswith("."))
    except OSError:  # removed meanwhile, or not readable
        return
    for name in names:
        if os.path.lexists(RunFiles(folder / name).config):
            yield _found(folder / name, before + name)
        elif depth > 1:
            yield from _below(folder / name, f"{before}{name}/", depth - 1)


def _found(directory: Path, name: str) -> _Found:
    files = RunFiles(directory)
    read = [_stat(path) for path in (files.config, files.metrics, files.model, files.certificate, files.audit)]
    config, metrics, model, *_ = read
    ledger, journal = _stat(files.ledger), _stat(files.ledger.with_name(files.ledger.name + "-wal"))
    problem = ""
    if not all(stat.S_ISREG(one.st_mode) for one in (*read, ledger) if one is not None):
        problem = "one of its files is a link, or no file"  # a link could lead anywhere, and reading a pipe never ends
    elif any(one.st_size > LARGEST_BYTES for one in read if one is not None and one is not model):
        problem = "one of its files is far too large"
    return _Found(
        directory=directory,
        name=name,
        signature=tuple(None if one is None else (one.st_mtime_ns, one.st_size, one.st_ino) for one in read),
        problem=problem,
        begun_at=0.0 if config is None else config.st_mtime,
        written_at=max((one.st_mtime for one in (metrics, ledger, journal) if one and one.st_size), default=0.0),
    )


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _listed(found: _Found) -> ListedRun:
    name = os.fsencode(found.name).decode(errors="replace")
    because = found.problem
    if not because:
        try:
            return _understood(found.key, name, RunFiles(found.directory))
        except LehrError as error:
            because = without_paths(error, found.directory)
        except Exception:  # whatever is in one folder must not hide all others
            because = "it cannot be understood"
    return ListedRun(key=found.key, kind="broken", name=name, state=f"broken: {because}")


def without_paths(error: LehrError, directory: Path) -> str:
    """The message of an error, without the path of the run."""
    return str(error).replace(f"{directory}{os.sep}", "").replace(str(directory), directory.name)


def _understood(key: str, name: str, files: RunFiles) -> ListedRun:
    config = strict_json.read(files.config, config_from_json)
    plan = None if config["plan"] is None else Plan.from_json(config["plan"])
    last = _last_row(files.metrics)
    state = _state(plan, last, has_model=files.model.exists())
    accuracy = _number(last, "accuracy")
    steps = f"{_count(last, 'step'):,}" if last else NOTHING
    if plan is not None:
        steps += f" of {plan.steps:,}" if plan.limit is None else f" of at most {plan.steps:,}"
    return ListedRun(
        key=key,
        kind={State.GOING_ON: "open", State.STOPPED: "stopped"}.get(state, "finished"),
        name=name,
        state=state.value,
        method=str(config["method"]["name"]),
        data=str(config["data"].get("name", NOTHING)),
        epsilon=_epsilon(config, plan, last, is_over=state is not State.GOING_ON),
        accuracy=NOTHING if accuracy is None else f"{accuracy:.2%} on {last.get('on', NOTHING)}",
        steps=steps,
        started=str(config.get("created_on", NOTHING)),
    )


def _last_row(path: Path) -> Mapping[str, Any]:
    """The last row that was written whole; nothing where there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            whole = file.read().split(b"\n")[:-1]
        row = strict_json.loads(whole[-1].decode()) if whole else {}
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeError, InvalidValue) as error:
        raise StoreError(f"the last row of {path.name} cannot be read: {error}") from error
    if not isinstance(row, dict):
        raise StoreError(f"the last row of {path.name} is no object")
    return row


def _state(plan: Plan | None, last: Mapping[str, Any], *, has_model: bool) -> State:
    """As far as two small files tell; the page of the run looks into its ledger."""
    if not has_model:
        return State.GOING_ON
    if plan is None or not last or _count(last, "step") >= plan.steps:
        return State.COMPLETED
    if plan.limit is not None:
        return State.SPENT
    enough = plan.stops_at_accepted
    return State.STOPPED if enough is None or _count(last, "accepted") < enough else State.ACCEPTED


def _epsilon(config: Mapping[str, Any], plan: Plan | None, last: Mapping[str, Any], *, is_over: bool) -> str:
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
    spent = _number(last, "epsilon_spent")
    return f"{NOTHING if spent is None else at_most(spent)} of {at_most(claim.epsilon)}"


def _count(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    return value if type(value) is int else 0


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    return value if isinstance(value, float) and math.isfinite(value) else None


def _with_age(listed: ListedRun, found: _Found, *, now: float) -> ListedRun:
    """Whether a run that has no model yet still writes."""
    if listed.kind != "open" or not found.written_at:
        return listed
    seconds = now - found.written_at
    if seconds <= LIVELY_SECONDS:
        return replace(listed, kind="training", state="training")
    age = f"{max(1.0, seconds / 60):.0f} min"
    if seconds >= 2 * 3600:
        age = f"{seconds / 3600:.0f} hours" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days"
    return replace(listed, state=f"{listed.state}; nothing new for {age}")


# The pages.

_NOTHING_ELSE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; img-src data:; "
_LIST_SCRIPTS = "script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'"
LIST_POLICY = _NOTHING_ELSE + _LIST_SCRIPTS
RUN_POLICY = _NOTHING_ELSE + "script-src 'unsafe-inline'; style-src 'unsafe-inline'"  # one file, its script inside
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
    policy: str = LIST_POLICY
    status: HTTPStatus = HTTPStatus.OK


class Pages:
    """The list of a folder, and the page of each run in it."""

    def __init__(self, runs: RunList) -> None:
        self.runs = runs
        self._lock = threading.Lock()

    def answer(self, address: str) -> Answer:
        """The answer to an address; its query is ignored."""
        path = address.partition("?")[0]
        before, _, key = path.rpartition("/")
        if before == "/runs" and (directory := self.runs.directory(key)) is not None:
            return self._run(directory)
        match path:
            case "/":
                return self._list()
            case "/runs.json":
                rows = [row.to_json() for row in self.runs.listed()]
                return Answer(body=strict_json.dumps({"runs": rows}), kind="application/json")
            case "/list.js":
                return Answer(body=resource("run_list.js"), kind="text/javascript")
        return _error(HTTPStatus.NOT_FOUND, "There is no such page", "The run may have been moved or removed.")

    def _list(self) -> Answer:
        runs = self.runs.listed()
        title = f"Runs in {self.runs.folder.name or self.runs.folder}"
        table = Table(
            title="Runs",
            element="runs",
            style="cards",
            headings=[*COLUMNS.values()],
            fields=[*COLUMNS],
            rows=[[getattr(run, field) for field in COLUMNS] for run in runs],
            links=[f"/runs/{run.key}" for run in runs],
            row_classes=[run.kind for run in runs],
            keys=[run.key for run in runs],
        )
        page = Page(
            title=title,
            heading=title,
            status=f"{len(runs)} run{'' if len(runs) == 1 else 's'}",
            width="wide",
            blocks=[Section(title="Runs", parts=[table])],
            closing=[note(LIST_NOTE)],
            footer=f"Lehr {lehr.__version__}. Only public values are served: no record, no key, no weights.",
            script="/list.js",
            policy="default-src 'none'; img-src data:; " + _LIST_SCRIPTS,
        )
        return Answer(body=render_page(page))

    def _run(self, directory: Path) -> Answer:
        with self._lock:  # one page at a time, however many are asked for
            try:
                return Answer(body=run_page.render(read_run(directory)), policy=RUN_POLICY)
            except LehrError as error:
                because = without_paths(error, directory)
            except Exception as error:  # one broken run does not end the server
                because = f"its files cannot be understood ({type(error).__name__})"
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "This run cannot be shown", because)


def _error(status: HTTPStatus, heading: str, because: str) -> Answer:
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    text, link = [Paragraph(because)], ("All runs", "/")
    page = Page(title=heading, heading=heading, introduction=text, link=link, policy=policy)
    return Answer(body=render_page(page), status=status)


# The server.

TIMEOUT = 20.0  # seconds, for a request to arrive and for its answer to be received
LAST_PORT = 65_535
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Listens from its construction until ``server_close``; ``serve_forever`` answers."""

    daemon_threads = True
    block_on_close = False  # a slow client does not delay the end

    def __init__(self, pages: Pages, *, host: str, address: str, family: socket.AddressFamily, port: int) -> None:
        self.pages = pages
        self.address_family = family
        self.is_local = _is_local(address)
        self.names = LOCAL_NAMES | {address} if self.is_local else {host.lower(), socket.gethostname().lower()}
        super().__init__((address, port), Handler)

    def server_bind(self) -> None:
        """Bind without a DNS query for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A closed connection is no error; anything else is one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            sys.stderr.write(f"lehr: a request could not be answered: {type(error).__name__}\n")

    @property
    def address(self) -> str:
        """The URL for a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.server_name, self.server_name)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"


def server(folder: Path, *, host: str, port: int, beyond_this_machine: bool = False) -> Server:
    """A server that already listens. Port 0 is any free port."""
    if validate.count(minimum=0, port=port) > LAST_PORT:
        raise InvalidValue("port", allowed=f"a number from 0 to {LAST_PORT}", given=port)
    pages = Pages(RunList(folder))
    try:  # the address that is checked is also the one that is bound
        family, _, _, _, found = socket.getaddrinfo(validate.text(host=host), None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise InvalidValue("host", allowed="an address or a name of this machine", given=host) from error
    address = str(found[0])
    if not _is_local(address) and not beyond_this_machine:
        allowed = "an address that only this machine reaches, such as 127.0.0.1; others need --beyond-this-machine"
        raise InvalidValue("host", allowed=allowed, given=host)
    try:
        return Server(pages, host=host, address=address, family=family, port=port)
    except OSError as error:
        because = "another program listens there" if error.errno == errno.EADDRINUSE else error.strerror or error
        allowed = f"another one, or 0 for one that is free: {because}"
        raise InvalidValue("port", allowed=allowed, given=port) from error


def _is_local(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = TIMEOUT

    def do_GET(self) -> None:
        """Answer with a page."""
        if not _has_own_host(self.server, self.headers.get_all("Host")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif _is_in_the_background_of_another_site(self.headers):
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


def _has_own_host(server: Server, given: list[str] | None) -> bool:
    """Whether the Host header names this server, by any IP address too if others may connect: DNS cannot rebind it."""
    if given is None or len(given) != 1:
        return False
    host = given[0].strip().lower()
    name, _, port = host.partition(":")
    if host.startswith("["):
        name, _, port = host[1:].partition("]")
        port = port.removeprefix(":")
    if port != str(server.server_port) and (port or server.server_port != 80):
        return False
    return name in server.names or (not server.is_local and _is_ip_address(name))


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _is_in_the_background_of_another_site(headers: Message) -> bool:
    """Following a link from another site is allowed."""
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"
