"""The small local web server of ``lehr serve``.

There is no password, so that by default only this machine is answered. A web page of somebody else that is open in the
same browser must not get anything either: such a page may have its own name point to this machine (DNS rebinding), so
that requests by another name than the server's are refused; it may ask in the background, which is refused; and no
answer may be read, framed or used by another origin.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import socketserver
import sys
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lehr import validate
from lehr.errors import InvalidValue
from lehr.reports.run_list import RunList
from lehr.reports.served_pages import Answer, Pages

PATIENCE = 20.0  # seconds for a request to arrive, and for its answer to be taken
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
    """Listens from when it is made until ``server_close``; ``serve_forever`` answers."""

    daemon_threads = True
    block_on_close = False  # whoever is still being answered does not hold up the end

    def __init__(self, pages: Pages, *, host: str, place: str, family: socket.AddressFamily, port: int) -> None:
        self.pages = pages
        self.address_family = family
        self.is_local = ipaddress.ip_address(place.partition("%")[0]).is_loopback  # no other machine is answered
        self.names = LOCAL_NAMES | {place} if self.is_local else {host.lower(), socket.gethostname().lower()}
        super().__init__((place, port), Handler)

    def server_bind(self) -> None:
        """Without asking the network how this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is one line."""
        error = sys.exception()
        if not isinstance(error, OSError):
            sys.stderr.write(f"lehr: a request could not be answered: {type(error).__name__}\n")

    @property
    def address(self) -> str:
        """What to open in a browser."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.server_name, self.server_name)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"


def server(folder: Path, *, host: str, port: int, beyond_this_machine: bool = False) -> Server:
    """A server that listens already. Port 0 picks one that is free."""
    if validate.count(minimum=0, port=port) > LAST_PORT:
        raise InvalidValue("port", allowed=f"a number from 0 to {LAST_PORT}", given=port)
    pages = Pages(RunList(folder))
    family, place = _place(host)
    if not ipaddress.ip_address(place.partition("%")[0]).is_loopback and not beyond_this_machine:
        allowed = "an address that only this machine reaches, such as 127.0.0.1; others need --beyond-this-machine"
        raise InvalidValue("host", allowed=allowed, given=host)
    try:
        return Server(pages, host=host, place=place, family=family, port=port)
    except OSError as error:
        raise InvalidValue("port", allowed=_another(error), given=port) from error


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        """A page."""
        self._answer()

    def do_HEAD(self) -> None:
        """The same without its body."""
        self._answer()

    def version_string(self) -> str:
        """The name, and no version: nobody needs it."""
        return "lehr"

    def log_message(self, *_: object) -> None:
        """What is looked at is nobody's business."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A refusal, with the same headers as everything else; what was asked is not repeated."""
        status = HTTPStatus(code)
        self.close_connection = True
        self._send(Answer(body=f"{status.value} {status.phrase}\n", kind="text/plain", status=status))

    def _answer(self) -> None:
        if not _is_called_by_its_name(self.server, self.headers.get_all("Host")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        elif _is_in_the_background_of_another_site(self.headers):
            self.send_error(HTTPStatus.FORBIDDEN)
        else:
            self._send(self.server.pages.answer(self.path))

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


def _place(host: str) -> tuple[socket.AddressFamily, str]:
    """The address that a host is, so that what is checked is also what is listened to."""
    try:
        found = socket.getaddrinfo(validate.text(host=host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidValue("host", allowed="an address or a name of this machine", given=host) from error
    family, _, _, _, address = found[0]
    return family, str(address[0])


def _another(error: OSError) -> str:
    taken = error.errno == errno.EADDRINUSE
    because = "another program listens there" if taken else str(error.strerror or error)
    return f"another one, or 0 for one that is free: {because}"


def _is_called_by_its_name(server: Server, given: list[str] | None) -> bool:
    """Whether a request calls the server by its name; from other machines by a number too, which none can rebind."""
    if given is None or len(given) != 1:
        return False
    name, port = _split(given[0].strip().lower())
    if port != str(server.server_port) and (port or server.server_port != 80):
        return False
    return name in server.names or (not server.is_local and _is_number(name))


def _split(host: str) -> tuple[str, str]:
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = host.partition(":")
    return name, port


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name == "localhost"
    return True


def _is_in_the_background_of_another_site(headers: Message) -> bool:
    """Somebody who follows a link comes from another site too, and may."""
    site, mode = headers.get("Sec-Fetch-Site", "none"), headers.get("Sec-Fetch-Mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"
