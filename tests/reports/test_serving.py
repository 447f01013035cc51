"""A real server, asked over a real connection."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from lehr.certificates.guarantee import claim_to_json
from lehr.errors import InvalidValue, StoreError
from lehr.planning.simulation import simulate
from lehr.reports import serving
from lehr.reports.serving import (
    COLUMNS,
    HEADERS,
    LARGEST_BYTES,
    LIST_POLICY,
    LIVELY_SECONDS,
    RUN_POLICY,
    TAIL_BYTES,
    ListedRun,
    Pages,
    RunList,
    Server,
)
from lehr.rounding import at_most
from lehr.run.shape import RunFiles
from tests.certificates.conftest import PROVEN, PUBLISHED
from tests.reports.pages import Page
from tests.written_runs import PLAN, configuration, evaluations, write_run


def only(folder: Path) -> ListedRun:
    [listed] = RunList(folder).listed()
    return listed


def claiming(**sections: Any) -> dict[str, Any]:
    """A configuration that has counted what its plan costs, as a run does that begins."""
    return {
        **configuration(**sections),
        "claims": {"proven": claim_to_json(PROVEN), "published": claim_to_json(PUBLISHED)},
    }


def aged(files: RunFiles, seconds: float) -> None:
    then = time.time() - seconds
    for path in (files.metrics, files.ledger):
        os.utime(path, (then, then))


def test_a_run_that_goes_on_shows_what_it_spent_of_what_its_plan_costs(tmp_path: Path) -> None:
    write_run(tmp_path / "first", config=claiming(), is_over=False, rows=evaluations([10, 20]))
    assert only(tmp_path) == ListedRun(
        key=only(tmp_path).key,
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


def test_the_epsilon_is_never_that_of_the_papers_rule(tmp_path: Path) -> None:
    write_run(tmp_path / "first", config=claiming())
    assert only(tmp_path).epsilon == at_most(PROVEN.epsilon) != at_most(PUBLISHED.epsilon)


def test_a_run_that_counted_nothing_yet_is_counted(tmp_path: Path) -> None:
    write_run(tmp_path / "first", is_over=False, rows=[])
    assert only(tmp_path).epsilon == f"– of {at_most(PLAN.claim().epsilon)}"
    assert only(tmp_path).steps == "– of 40"


def test_a_run_that_has_long_written_nothing_is_not_called_training(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False)
    aged(files, LIVELY_SECONDS + 60)
    assert only(tmp_path).kind == "open"
    assert only(tmp_path).state == "still running, or interrupted; nothing new for 2 min"
    aged(files, 3 * 86_400)
    assert only(tmp_path).state.endswith("nothing new for 3 days")


@pytest.mark.parametrize(
    "steps, plan, kind, state",
    [
        (40, {}, "finished", "finished: the plan was completed"),
        (30, {}, "stopped", "stopped before the plan's end"),
        (30, {"stops_at_accepted": 30}, "finished", "finished: enough candidates were accepted"),
        (30, {"stops_at_accepted": 31}, "stopped", "stopped before the plan's end"),
    ],
)
def test_a_run_with_a_model_says_how_it_ended(
    tmp_path: Path, steps: int, plan: dict[str, Any], kind: str, state: str
) -> None:
    config = claiming(plan=replace(PLAN, **plan).to_json())
    write_run(tmp_path / "first", config=config, steps_taken=steps, rows=evaluations([10, steps]))
    listed = only(tmp_path)
    assert (listed.kind, listed.state, listed.epsilon) == (kind, state, "2.5")  # whatever it used, the plan is charged


@pytest.mark.parametrize(
    "sections",
    [
        {"plan": None, "method": {"name": "plain-sgd"}},
        {"data": {"declared": "public"}},
        {"plan": replace(PLAN, noise_multiplier=0.0).to_json()},
        {"plan": simulate(PLAN, expected_batch_size=4).to_json(), "data": {"declared": "public"}},
    ],
    ids=["no plan", "public records", "no noise", "simulation"],
)
def test_a_run_that_promises_nothing_shows_no_epsilon(tmp_path: Path, sections: dict[str, Any]) -> None:
    write_run(tmp_path / "first", config=claiming(**sections), is_over=False)
    assert only(tmp_path).epsilon == "no privacy"


def test_a_trial_of_a_search_shows_no_epsilon_of_its_own(tmp_path: Path) -> None:
    price = {"kind": "composition", "trials": 3}
    write_run(tmp_path / "first", config={**claiming(), "trial_of": price}, is_over=False)
    assert only(tmp_path).epsilon == "counted for its search"


def test_runs_are_found_below_other_folders_and_the_newest_is_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "search/trials/7", "old")):
        files = write_run(tmp_path / name)
        os.utime(files.config, (1e9 - age, 1e9 - age))
    (tmp_path / "notes").mkdir()
    write_run(tmp_path / ".hidden" / "run")
    write_run(tmp_path / "new" / "copies" / "inside of a run")
    assert [listed.name for listed in RunList(tmp_path).listed()] == ["new", "search/trials/7", "old"]


def test_the_folder_of_a_run_itself_is_a_list_of_one(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    assert only(tmp_path / "first").name == "first"


def test_a_folder_without_runs_is_an_empty_list_and_none_is_an_error(tmp_path: Path) -> None:
    assert RunList(tmp_path).listed() == []
    with pytest.raises(StoreError, match="no such folder"):
        RunList(tmp_path / "nowhere")


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False, rows=evaluations([10, 20]))
    with files.metrics.open("ab") as file:
        file.write(b'{"step": 30, "accur')
    assert only(tmp_path).steps == "20 of 40"


def test_the_last_row_is_found_after_many(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=False, rows=[])
    row = b'{"step": %d, "accepted": 1, "epsilon_spent": 0.5, "accuracy": 0.25, "on": "test"}\n'
    files.metrics.write_bytes(b"".join(row % step for step in range(2000)))
    assert files.metrics.stat().st_size > 2 * TAIL_BYTES
    assert only(tmp_path).steps == "1,999 of 40"


@pytest.mark.parametrize("value", ["10" * 200, '"infinity"', "null", "[1]", "true", '"<b>"', "1e999"])
@pytest.mark.parametrize("name", ["step", "accuracy", "epsilon_spent"])
def test_odd_values_are_left_out_and_hide_nothing_else(tmp_path: Path, name: str, value: str) -> None:
    files = write_run(tmp_path / "first", config=claiming(), is_over=False, rows=[])
    files.metrics.write_text(f'{{"{name}": {value}}}\n')
    write_run(tmp_path / "second")
    listed = {one.name: one for one in RunList(tmp_path).listed()}
    assert listed["second"].kind == "finished"
    assert listed["first"].kind in ("training", "broken")
    assert listed["first"].accuracy == "–"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "lehr-run"}', "\0\0", '{"format": "lehr-run", "format_version": 2}']
)
def test_a_folder_that_cannot_be_understood_is_listed_as_broken(tmp_path: Path, content: str) -> None:
    write_run(tmp_path / "good")
    files = write_run(tmp_path / "bad")
    files.config.write_text(content)
    listed = {one.name: one for one in RunList(tmp_path).listed()}
    assert listed["bad"].kind == "broken"
    assert str(tmp_path) not in listed["bad"].state
    assert listed["good"].kind == "finished"


def test_metrics_that_are_no_rows_are_broken(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    for content in (b"\xff\xfe\n", b"[]\n", b"{\n"):
        files.metrics.write_bytes(content)
        assert only(tmp_path).kind == "broken"


def test_links_lead_nowhere(tmp_path: Path) -> None:
    outside = write_run(tmp_path / "outside" / "run")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "linked").symlink_to(outside.directory)
    assert RunList(runs).listed() == []
    inside = write_run(runs / "first")
    inside.config.unlink()
    inside.config.symlink_to(outside.config)
    listing = RunList(runs)
    [listed] = listing.listed()
    assert listed.state == "broken: one of its files is a link, or no file"
    assert listing.directory(listed.key) is None


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "ledger.db", "certificate.json", "audit.json"])
def test_a_pipe_in_place_of_a_file_does_not_hold_up_the_list(tmp_path: Path, name: str) -> None:
    files = write_run(tmp_path / "first")
    (files.directory / name).unlink(missing_ok=True)
    os.mkfifo(files.directory / name)
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    assert listed.kind == "broken"
    assert listing.directory(listed.key) is None


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    with files.metrics.open("ab") as file:
        file.truncate(LARGEST_BYTES + 1)
    assert only(tmp_path).state == "broken: one of its files is far too large"


def test_a_run_is_read_again_only_when_it_changed(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first", is_over=True, rows=evaluations([10]))
    listing = RunList(tmp_path)
    [before] = listing.listed()
    assert listing.listed()[0] is before
    with files.metrics.open("a") as file:
        file.write('{"step": 40, "accepted": 40, "accuracy": 0.5, "on": "test"}\n')
    [after] = listing.listed()
    assert (before.steps, after.steps) == ("10 of 40", "40 of 40")


def test_a_run_is_found_by_its_key_until_it_is_gone(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    assert listing.directory(listed.key) == files.directory
    assert RunList(tmp_path).directory(listed.key) == files.directory  # a list that nobody has asked for yet
    files.directory.rename(tmp_path / "second")
    listing.listed()
    assert listing.directory(listed.key) is None


def test_a_file_that_became_a_link_since_the_list_was_made_is_noticed(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    listing = RunList(tmp_path)
    [listed] = listing.listed()
    files.metrics.rename(tmp_path / "metrics")
    files.metrics.symlink_to(tmp_path / "metrics")
    assert listing.directory(listed.key) is None


@pytest.mark.parametrize("key", ["", "..", "first", "../first", "/etc/passwd", "first/private", "\0"])
def test_no_path_is_a_key(tmp_path: Path, key: str) -> None:
    write_run(tmp_path / "first")
    assert RunList(tmp_path).directory(key) is None


def test_a_name_that_is_no_text_is_shown_as_well_as_it_can_be(tmp_path: Path) -> None:
    write_run(tmp_path / "first")
    os.rename(os.fsencode(tmp_path / "first"), os.fsencode(tmp_path) + b"/\xff<b>")
    listed = only(tmp_path)
    assert listed.name == "�<b>"
    assert RunList(tmp_path).directory(listed.key) is not None


ATTACK = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"


@pytest.fixture
def pages(tmp_path: Path) -> Pages:
    write_run(tmp_path / "first")
    write_run(tmp_path / "second", is_over=False)
    return Pages(RunList(tmp_path))


def key_of(pages: Pages, name: str) -> str:
    return next(listed.key for listed in pages.runs.listed() if listed.name == name)


def test_the_list_has_a_row_for_each_run_that_leads_to_its_page(pages: Pages) -> None:
    answer = pages.answer("/")
    page = Page(answer.body)
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert len(links) == 2
    assert set(links) == {f"/runs/{key_of(pages, name)}" for name in ("first", "second")}
    assert all(heading in page.words for heading in COLUMNS.values())
    assert "finished: the plan was completed" in page.words


def test_the_script_is_told_what_the_list_says(pages: Pages) -> None:
    answer = pages.answer("/runs.json")
    assert answer.kind == "application/json"
    assert json.loads(answer.body)["runs"] == [listed.to_json() for listed in pages.runs.listed()]


def test_the_list_loads_one_script_and_that_is_served(pages: Pages) -> None:
    page = Page(pages.answer("/").body)
    sources = [attributes["src"] for tag, attributes in page.tags if "src" in attributes]
    assert sources == ["/list.js"]
    assert not any(script.strip() for script in page.scripts)  # the policy allows no script inside of the page
    assert "unsafe-inline" not in LIST_POLICY.partition("script-src")[2].partition(";")[0]
    assert "runs.json" in pages.answer("/list.js").body


def test_the_script_puts_nothing_into_the_page_but_text(pages: Pages) -> None:
    script = pages.answer("/list.js").body
    assert not any(word in script for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("))


def test_the_page_of_a_run_is_its_report(pages: Pages) -> None:
    answer = pages.answer(f"/runs/{key_of(pages, 'second')}?again")
    assert (answer.status, answer.policy) == (HTTPStatus.OK, RUN_POLICY)
    assert "Training run: first try" in Page(answer.body).words


@pytest.mark.parametrize("policy", [LIST_POLICY, RUN_POLICY])
def test_a_page_may_load_nothing_from_elsewhere_and_be_framed_by_nobody(policy: str) -> None:
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


@pytest.mark.parametrize(
    "address",
    [
        "/first",
        "/runs",
        "/runs/",
        "/runs/first",
        "/runs/first/config.json",
        "/runs/first/private/key",
        "/first/private/key",
        "/runs/../first/private/key",
        "/runs/..%2ffirst%2fprivate%2fkey",
        "/runs/%2e%2e",
        "/../../../../etc/passwd",
        "//etc/passwd",
        "/list.js/",
        "/serve_page.js",
        "/favicon.ico",
        "http://127.0.0.1/",
        "*",
        "",
    ],
)
def test_there_is_nothing_else(pages: Pages, address: str) -> None:
    answer = pages.answer(address)
    assert answer.status is HTTPStatus.NOT_FOUND
    assert Page(answer.body).words.split()[:3] == ["There", "is", "no"]


def test_files_of_a_run_are_out_of_reach_by_its_key_too(pages: Pages) -> None:
    key = key_of(pages, "first")
    for name in ("config.json", "private/key", "../private/key", "ledger.db", "model.safetensors"):
        assert pages.answer(f"/runs/{key}/{name}").status is HTTPStatus.NOT_FOUND


def test_a_run_that_cannot_be_read_says_why_without_saying_where_it_lies(tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    files.ledger.write_bytes(b"no ledger")
    pages = Pages(RunList(tmp_path))
    answer = pages.answer(f"/runs/{key_of(pages, 'first')}")
    assert answer.status is HTTPStatus.INTERNAL_SERVER_ERROR
    assert "This run cannot be shown" in answer.body
    assert "ledger.db" in answer.body
    assert str(tmp_path) not in answer.body


def test_hostile_names_are_words_and_nothing_else(tmp_path: Path) -> None:
    config = configuration(run=ATTACK, method={"name": ATTACK}, data={"name": ATTACK})
    name = ATTACK.replace("/", "∕")
    write_run(tmp_path / "runs" / name, config=config, rows=evaluations(on=ATTACK), is_over=False)
    pages = Pages(RunList(tmp_path / "runs"))
    list_page = pages.answer("/").body
    for page in (list_page, pages.answer(f"/runs/{pages.runs.listed()[0].key}").body):
        assert ATTACK not in page
        assert name not in page
    assert "{{ 7 * 7 }}" in Page(list_page).words
    assert "b" not in {tag for tag, _ in Page(list_page).tags}


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
