"""The list of runs, the pages, and a real server, asked over a real connection."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from lehr.certificates.guarantee import claim_to_json
from lehr.errors import InvalidValue, StoreError
from lehr.planning.simulation import simulate
from lehr.reports.serving import (
    COLUMNS,
    HEADERS,
    LARGEST_BYTES,
    LIVELY_SECONDS,
    POLICY,
    RUN_POLICY,
    Pages,
    RunRow,
    Server,
    list_runs,
    run_address,
)
from lehr.rounding import at_most
from tests.certificates.conftest import PROVEN, PUBLISHED
from tests.reports.pages import Page
from tests.written_runs import PLAN, configuration, evaluations, write_run

ATTACK = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"


def only(folder: Path) -> RunRow:
    [listed] = list_runs(folder).values()
    return listed


def claiming(**sections: Any) -> dict[str, Any]:
    """A configuration that has counted what its plan costs, as a run does that begins."""
    claims = {"proven": claim_to_json(PROVEN), "published": claim_to_json(PUBLISHED)}
    return {**configuration(**sections), "claims": claims}


# The list.


def test_training_run_shows_what_it_spent_of_its_plan(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", config=claiming(), is_over=False, rows=evaluations([10, 20]))
    listed = RunRow(
        kind="training",
        name="first",
        state="training",
        method="sa-dpsgd",
        data="digits",
        epsilon="0.2 of 2.5",
        accuracy="90.00% on test",
        steps="20 of 40",
        started="2026-01-31",
    )
    assert only(tmp_path) == listed
    with files.metrics.open("ab") as file:
        file.write(b'{"step": 30, "accur')  # a row that is being written is left out
    assert only(tmp_path) == listed
    then = time.time() - LIVELY_SECONDS - 1
    for path in (files.metrics, files.ledger):
        os.utime(path, (then, then))
    assert only(tmp_path) == replace(listed, kind="open", state="still running, or interrupted")


def test_run_that_counted_nothing_yet_is_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "first", is_over=False, rows=[])
    assert only(tmp_path).epsilon == f"– of {at_most(PLAN.claim().epsilon)}"
    assert only(tmp_path).steps == "– of 40"


@pytest.mark.parametrize(
    "steps, plan, kind, state",
    [
        (40, {}, "finished", "finished: the plan was completed"),
        (30, {}, "stopped", "stopped before the plan's end"),
        (30, {"stops_at_accepted": 30}, "finished", "finished: enough candidates were accepted"),
        (30, {"stops_at_accepted": 31}, "stopped", "stopped before the plan's end"),
    ],
)
def test_finished_run_shows_its_end_and_the_proven_epsilon_of_its_plan(
    tmp_path: Path, steps: int, plan: dict[str, Any], kind: str, state: str
) -> None:
    config = claiming(plan=replace(PLAN, **plan).to_json())
    write_run(tmp_path / "first", config=config, steps_taken=steps, rows=evaluations([10, steps]))
    listed = only(tmp_path)
    assert (listed.kind, listed.state) == (kind, state)
    assert listed.epsilon == at_most(PROVEN.epsilon) != at_most(PUBLISHED.epsilon)  # whatever it used


@pytest.mark.parametrize(
    "sections, epsilon",
    [
        ({"plan": None, "method": {"name": "plain-sgd"}}, "no privacy"),
        ({"data": {"declared": "public"}}, "no privacy"),
        ({"plan": replace(PLAN, noise_multiplier=0.0).to_json()}, "no privacy"),
        ({"plan": simulate(PLAN, expected_batch_size=4).to_json()}, "no privacy"),
        ({}, "counted for its search"),
    ],
    ids=["no plan", "public records", "no noise", "simulation", "trial"],
)
def test_run_without_a_guarantee_of_its_own_shows_no_epsilon(
    tmp_path: Path, sections: dict[str, Any], epsilon: str
) -> None:
    trial = {} if sections else {"trial_of": {"kind": "composition", "trials": 3}}
    write_run(tmp_path / "first", config={**claiming(**sections), **trial}, is_over=False)
    assert only(tmp_path).epsilon == epsilon


def test_runs_are_found_below_other_folders_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "search/trials/7", "old")):
        files = write_run(tmp_path / name)
        os.utime(files.config, (1e9 - age, 1e9 - age))
    (tmp_path / "notes").mkdir()
    write_run(tmp_path / ".hidden" / "run")
    write_run(tmp_path / "new" / "copies" / "inside of a run")
    assert [listed.name for listed in list_runs(tmp_path).values()] == ["new", "search/trials/7", "old"]
    assert only(tmp_path / "new").name == "new"
    assert list_runs(tmp_path / "notes") == {}
    with pytest.raises(StoreError, match="no such folder"):
        list_runs(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content", ["", "[]\n", "{\n", "\0\0", '{"format": "lehr-run"}', '{"step": "<b>"}\n', "10" * 200]
)
@pytest.mark.parametrize("name", ["config", "metrics"])
def test_damaged_run_is_listed_as_broken_and_hides_no_other(tmp_path: Path, name: str, content: str) -> None:
    files = write_run(tmp_path / "bad", config=claiming())
    write_run(tmp_path / "good")
    getattr(files, name).write_text(content)
    listed = {one.name: one for one in list_runs(tmp_path).values()}
    is_half_written = name == "metrics" and "\n" not in content
    assert listed["bad"].kind == ("finished" if is_half_written else "broken")
    assert str(tmp_path) not in listed["bad"].state
    assert listed["good"].kind == "finished"


def refused(folder: Path) -> bool:
    """Whether the only run is listed as broken, and its page is not shown."""
    [(directory, listed)] = list_runs(folder).items()
    answer = Pages(folder).answer(run_address(directory))
    return listed.kind == "broken" and answer.status is HTTPStatus.INTERNAL_SERVER_ERROR


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "run")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "linked").symlink_to(outside.directory)
    assert list_runs(runs) == {}
    inside = write_run(runs / "first")
    assert only(runs).kind == "finished"
    inside.config.unlink()
    inside.config.symlink_to(outside.config)
    assert refused(runs)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "ledger.db", "certificate.json", "audit.json"])
def test_pipe_in_place_of_a_file_does_not_block(tmp_path: Path, name: str) -> None:
    files = write_run(tmp_path / "first")
    (files.directory / name).unlink(missing_ok=True)
    os.mkfifo(files.directory / name)
    assert refused(tmp_path)


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    with files.metrics.open("ab") as file:
        file.truncate(LARGEST_BYTES + 1)
    assert refused(tmp_path)


def test_run_is_read_again_when_it_changed(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", rows=evaluations([10]))
    before = only(tmp_path)
    assert only(tmp_path) is before
    with files.metrics.open("a") as file:
        file.write(files.metrics.read_text().replace('"step": 10', '"step": 40'))
    assert (before.steps, only(tmp_path).steps) == ("10 of 40", "40 of 40")


def test_name_that_is_no_text_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    os.rename(os.fsencode(tmp_path / "first"), os.fsencode(tmp_path) + b"/\xff<b>")
    assert only(tmp_path).name == "�<b>"
    assert Pages(tmp_path).answer("/").status is HTTPStatus.OK


# The pages.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "first")
    write_run(folder / "second", is_over=False)
    return folder


@pytest.fixture(scope="module")
def pages(folder: Path) -> Pages:
    return Pages(folder)


def test_list_links_to_the_page_of_each_run_and_has_no_script(pages: Pages) -> None:
    answer = pages.answer("/?again")
    page = Page(answer.body)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert sorted(map(str, links)) == sorted(map(run_address, list_runs(pages.folder)))
    assert all(heading in page.words for heading in COLUMNS.values())
    assert "finished: the plan was completed" in page.words
    assert (page.scripts, answer.policy) == ([], POLICY)
    assert any(attributes.get("http-equiv") == "refresh" for _, attributes in page.tags)
    run = pages.answer(str(links[0]))
    assert (run.status, run.policy) == (HTTPStatus.OK, RUN_POLICY)
    assert "Training run: first try" in Page(run.body).words


@pytest.mark.parametrize("policy", [POLICY, RUN_POLICY])
def test_policy_allows_nothing_from_elsewhere_and_no_frames(policy: str) -> None:
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy
    assert "script-src" not in POLICY


@pytest.mark.parametrize(
    "address",
    [
        "/first",
        "/runs",
        "/runs/",
        "/runs/first",
        "/runs/first/private/key",
        "/runs/../first/private/key",
        "/runs/..%2ffirst%2fprivate%2fkey",
        "/../../../../etc/passwd",
        "//etc/passwd",
        "/favicon.ico",
        "http://127.0.0.1/",
        "*",
        "",
        "/runs/\0",
        "{run}/",
        "{run}/config.json",
        "{run}/../private/key",
        "{run}/private/key",
    ],
)
def test_every_other_address_is_not_found(pages: Pages, folder: Path, address: str) -> None:
    answer = pages.answer(address.format(run=run_address(folder / "first")))
    assert answer.status is HTTPStatus.NOT_FOUND
    assert str(folder) not in answer.body


def test_unreadable_run_says_why_without_its_path(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    files.ledger.write_bytes(b"no ledger")
    answer = Pages(tmp_path).answer(run_address(files.directory))
    assert answer.status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert "ledger.db" in answer.body
    assert str(tmp_path) not in answer.body


def test_hostile_names_are_shown_as_text(tmp_path: Path) -> None:
    config = configuration(run=ATTACK, method={"name": ATTACK}, data={"name": ATTACK})
    name = ATTACK.replace("/", "∕")
    files = write_run(tmp_path / "runs" / name, config=config, rows=evaluations(on=ATTACK), is_over=False)
    pages = Pages(tmp_path / "runs")
    listed = pages.answer("/").body
    for page in (listed, pages.answer(run_address(files.directory)).body):
        assert ATTACK not in page
        assert name not in page
        assert "b" not in {tag for tag, _ in Page(page).tags}
    assert "{{ 7 * 7 }}" in Page(listed).words


# The server.


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Server]:
    server = Server(folder, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def request(server: Server, path: str = "/", *, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def send_raw(server: Server, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_every_answer_keeps_other_sites_out(served: Server, folder: Path) -> None:
    for path, status in (("/", 200), (run_address(folder / "first"), 200), ("/first/private/key", 404)):
        response, body = request(served, path)
        assert response.status == status
        assert HEADERS.items() <= dict(response.getheaders()).items()
        assert str(response.getheader("Content-Security-Policy")).startswith("default-src 'none'")
        assert response.getheader("Access-Control-Allow-Origin") is None
        assert response.getheader("Server") == "lehr"
        assert bytes(range(32)) not in body  # the key of the run
        head, nothing = request(served, path, method="HEAD")
        assert (head.status, nothing, head.getheader("Content-Length")) == (status, b"", str(len(body)))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "<b>"])
def test_only_reading_is_possible(served: Server, method: str) -> None:
    response, body = request(served, method=method)
    assert response.status == 501
    assert HEADERS.items() <= dict(response.getheaders()).items()
    assert body == b"501 Not Implemented\n"


@pytest.mark.parametrize(
    "host, status",
    [
        ("127.0.0.1:{port}", 200),
        ("LOCALHOST:{port}", 200),
        ("127.0.0.1", 421),
        ("127.0.0.1:1", 421),
        ("192.0.2.7:{port}", 421),
        ("evil.example:{port}", 421),
        ("localhost.evil.example:{port}", 421),
        ("[::1", 421),
        ("", 421),
    ],
)
def test_only_own_host_names_are_answered(served: Server, host: str, status: int) -> None:
    assert request(served, Host=host.format(port=served.port))[0].status == status


def test_two_host_names_or_none_are_refused(served: Server) -> None:
    own = b"Host: 127.0.0.1:%d\r\n" % served.port
    for hosts in (b"", own + b"Host: evil.example\r\n", own + own):
        assert b" 421 " in send_raw(served, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n").splitlines()[0]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_but_not_ask_in_the_background(served: Server, site: str) -> None:
    assert request(served, Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate")[0].status == 200
    assert request(served, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors")[0].status == 403
    assert request(served, Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0].status == 200


def test_malformed_and_broken_off_requests_leave_the_server_running(
    served: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    for malformed in (
        b"\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /" + b"a" * 70_000,
    ):
        assert b"first" not in send_raw(served, malformed)
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(request(served)[0].status)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 12
    assert capfd.readouterr().err == ""


def test_only_a_free_port_of_this_machine_is_served(served: Server, folder: Path) -> None:
    assert served.server_address[0] == "127.0.0.1"
    for port in (served.port, -1, 65_536, True):
        with pytest.raises(InvalidValue, match="port"):
            Server(folder, port=port)
