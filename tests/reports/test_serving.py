"""A real server, asked over a real connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.reports import serving
from lehr.reports.serving import HEADERS, Server
from tests.written_runs import write_run


@contextmanager
def running(folder: Path, **options: object) -> Iterator[Server]:
    made = serving.server(folder, **{"host": "127.0.0.1", "port": 0, **options})  # type: ignore[arg-type]
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first")
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Server]:
    with running(folder) as made:
        yield made


def asked(made: Server, path: str = "/", *, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", made.server_port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def raw(made: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", made.server_port), timeout=20) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_the_list_and_the_page_of_a_run_are_answered(served: Server) -> None:
    response, body = asked(served)
    assert response.status == 200
    assert b">first</a>" in body
    key = served.pages.runs.listed()[0].key
    response, body = asked(served, f"/runs/{key}")
    assert response.status == 200
    assert b"Training run: first try" in body


@pytest.mark.parametrize("path", ["/", "/runs.json", "/list.js", "/nowhere"])
def test_every_answer_has_the_headers_that_keep_others_out(served: Server, path: str) -> None:
    response, _ = asked(served, path)
    assert HEADERS.items() <= dict(response.getheaders()).items()
    assert str(response.getheader("Content-Security-Policy")).startswith("default-src 'none'")
    assert response.getheader("Access-Control-Allow-Origin") is None
    assert response.getheader("Server") == "lehr"
    assert str(response.getheader("Content-Type")).endswith("; charset=utf-8")


def test_an_address_that_climbs_is_not_found(served: Server) -> None:
    for path in ("/../first/private/key", "/first/private/key", "/runs/..%2f..%2ffirst%2fprivate%2fkey", "/%00"):
        response, body = asked(served, path)
        assert response.status == 404
        assert bytes(range(32)) not in body  # the key of the run


def test_a_head_is_a_get_without_its_body(served: Server) -> None:
    response, body = asked(served, method="HEAD")
    full, text = asked(served)
    assert (response.status, body) == (200, b"")
    assert response.getheader("Content-Length") == full.getheader("Content-Length") == str(len(text))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "<b>"])
def test_nothing_but_reading_is_done(served: Server, method: str) -> None:
    response, body = asked(served, method=method)
    assert response.status == 501
    assert HEADERS.items() <= dict(response.getheaders()).items()
    assert body == b"501 Not Implemented\n"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1:1", "127.0.0.1", "localhost.evil.example:{port}", "", "[::1"],
)
def test_a_name_that_is_not_the_servers_is_refused(served: Server, host: str) -> None:
    response, body = asked(served, "/runs.json", Host=host.format(port=served.server_port))
    assert (response.status, body) == (421, b"421 Misdirected Request\n")


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_the_names_of_this_machine_are_answered(served: Server, host: str) -> None:
    assert asked(served, "/runs.json", Host=host.format(port=served.server_port))[0].status == 200


def test_two_names_or_none_are_refused(served: Server) -> None:
    own = b"Host: 127.0.0.1:%d\r\n" % served.server_port
    assert b" 200 " in raw(served, b"GET /runs.json HTTP/1.1\r\n" + own + b"\r\n").splitlines()[0]
    for hosts in (b"", own + b"Host: evil.example\r\n", own + own):
        assert b" 421 " in raw(served, b"GET /runs.json HTTP/1.1\r\n" + hosts + b"\r\n").splitlines()[0]


def test_requests_that_are_none_are_refused_and_the_server_goes_on(served: Server) -> None:
    for request in (
        b"\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /" + b"a" * 70_000,
    ):
        assert b"first" not in raw(served, request)
    assert asked(served)[0].status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_link_here_and_not_ask_in_the_background(served: Server, site: str) -> None:
    assert asked(served, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")[0].status == 200
    assert asked(served, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0].status == 403
    assert asked(served, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0].status == 200


def test_a_port_that_is_taken_is_named(served: Server, folder: Path) -> None:
    with pytest.raises(InvalidValue, match=rf"port must be another one.*listens there; given: {served.server_port}"):
        serving.server(folder, host="127.0.0.1", port=served.server_port)


@pytest.mark.parametrize("port", [-1, 65_536, True])
def test_a_port_that_is_none_is_refused(folder: Path, port: int) -> None:
    with pytest.raises(InvalidValue, match="port"):
        serving.server(folder, host="127.0.0.1", port=port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_others_are_let_in_only_when_that_is_said(folder: Path, host: str) -> None:
    with pytest.raises(InvalidValue, match=r"only this machine reaches.*beyond-this-machine"):
        serving.server(folder, host=host, port=0)


def test_a_host_that_is_none_is_refused(folder: Path) -> None:
    for host in ("", "a b", "x" * 300):
        with pytest.raises(InvalidValue, match="host"):
            serving.server(folder, host=host, port=0)


def test_a_server_for_others_is_called_by_its_number_or_name_and_by_no_other(folder: Path) -> None:
    with running(folder, host="0.0.0.0", beyond_this_machine=True) as made:
        assert not made.is_local
        assert made.address == f"http://127.0.0.1:{made.server_port}/"
        for name in ("127.0.0.1", "localhost", "192.0.2.7", socket.gethostname()):
            assert asked(made, "/runs.json", Host=f"{name}:{made.server_port}")[0].status == 200
        assert asked(made, "/runs.json", Host=f"evil.example:{made.server_port}")[0].status == 421


def test_a_server_for_this_machine_is_not_called_by_other_numbers(served: Server) -> None:
    assert asked(served, "/runs.json", Host=f"192.0.2.7:{served.server_port}")[0].status == 421


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        serving.server(tmp_path / "nowhere", host="127.0.0.1", port=0)


def test_many_may_ask_at_once(served: Server) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(asked(served, "/runs.json")[0].status)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 12


def test_a_browser_that_goes_away_is_no_news(served: Server, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", served.server_port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n")
    assert asked(served)[0].status == 200
    assert capfd.readouterr().err == ""
