from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path

import pytest

from lehr.reports.run_list import COLUMNS, RunList
from lehr.reports.served_pages import LIST_POLICY, RUN_POLICY, Pages
from tests.reports.pages import Page
from tests.written_runs import configuration, evaluations, write_run

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
