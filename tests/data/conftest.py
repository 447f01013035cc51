"""A machine without data sets, and a server that behaves as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lehr.data import catalogue


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set in any folder that is looked through: an empty home folder, which is also the current one."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(catalogue, "_SYSTEM", home / "usr")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(catalogue.VARIABLE, raising=False)
    monkeypatch.chdir(home)
    return home


@dataclass
class Server:
    """What a server offers by path, and how it misbehaves."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    knows_ranges: bool = True
    cut_after: list[int] = field(default_factory=list)  # one for each request: so many bytes of it arrive
    redirect_to: str | None = None
    asked_for: list[str] = field(default_factory=list)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    told = Server()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(told)) as listening:
        told.address = f"http://127.0.0.1:{listening.server_port}/"
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield told
        listening.shutdown()
        thread.join()


def _handler(told: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.asked_for.append(f"{self.path} {self.headers.get('Range', 'whole')}")
            content = told.files.get(self.path)
            if told.redirect_to is not None:
                self.send_response(302)
                self.send_header("Location", told.redirect_to)
                self.end_headers()
            elif content is None:
                self.send_error(404)
            else:
                self._answer(content)

        def _answer(self, content: bytes) -> None:
            start = _start(self.headers.get("Range")) if told.knows_ranges else 0
            if start >= len(content) > 0:
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            sent = told.cut_after.pop(0) if told.cut_after else len(content)
            self.wfile.write(content[start : start + sent])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler


def _start(asked: str | None) -> int:
    return int(asked.removeprefix("bytes=").split("-")[0]) if asked else 0
