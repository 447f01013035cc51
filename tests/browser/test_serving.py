"""The list of runs in a real browser, while a real run trains."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lehr import data, networks
from lehr.reports import serving
from lehr.reports.serving import Server
from lehr.run.shape import Callback, Evaluation
from lehr.training.fit import fit
from tests.browser.looking import PHONE, check_that_it_reads_well, drawn, empty_charts, picture, sticks_out
from tests.written_runs import configuration, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Server]:
    write_run(tmp_path / "old")
    write_run(tmp_path / HOSTILE, config=configuration(method={"name": HOSTILE}))
    write_run(tmp_path / "broken").config.write_text("{")
    made = serving.server(tmp_path, host="127.0.0.1", port=0)
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


class Onlooker(Callback):
    """Sees on the page what the run has just evaluated, and what the page said before."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.states: list[str] = []
        self.epsilons: list[str] = []

    def evaluated(self, evaluation: Evaluation) -> None:
        row = self._page.locator("tr", has=self._page.get_by_role("link", name="live", exact=True))
        row.get_by_text(f"{evaluation.step} of 4", exact=True).wait_for()
        self.states.append(row.locator(".of-state").inner_text())
        self.epsilons.append(row.locator(".of-epsilon").inner_text())


def test_a_run_is_followed_while_it_trains_and_its_page_opens(live_page: Page, served: Server, tmp_path: Path) -> None:
    live_page.goto(served.address)
    assert live_page.get_by_role("status").inner_text() == "3 runs"
    live_page.get_by_role("link", name="old").focus()
    seen = Onlooker(live_page)
    fit(
        networks.build("small_cnn"),
        data.load("digits"),
        epsilon=8,
        delta=1e-4,
        steps=4,
        expected_batch_size=32,
        evaluate_every=2,
        directory=tmp_path / "live",
        callbacks=[seen],
        compiled=False,
        quiet=True,
    )
    assert seen.states == ["training", "training"]
    assert all(words.endswith(" of 8") or " of 7.99" in words for words in seen.epsilons)
    live_page.get_by_text("4 runs", exact=True).wait_for()
    assert live_page.evaluate("() => document.activeElement.textContent") == "old"  # the keyboard stayed where it was
    live_page.get_by_role("link", name="live", exact=True).click()
    live_page.get_by_role("heading", level=1, name="dpsgd").wait_for()
    assert empty_charts(drawn(live_page)) == []


def test_the_list_reads_well_can_be_searched_and_shows_names_as_text(live_page: Page, served: Server) -> None:
    live_page.goto(served.address)
    with live_page.expect_response("**/runs.json"):  # the script goes over what the server wrote
        pass
    assert live_page.get_by_role("row").count() == 4
    assert live_page.get_by_role("link", name=HOSTILE).count() == 1
    assert live_page.locator("img").count() == 0
    assert "broken" in live_page.get_by_role("row", name="broken").inner_text()
    check_that_it_reads_well(live_page, "serve")
    assert live_page.viewport_size == PHONE
    live_page.get_by_label("Only runs with").fill("OLD finished")
    live_page.get_by_text("1 of 3 runs").wait_for()
    assert live_page.get_by_role("link").all_inner_texts() == ["old"]


def test_a_list_whose_server_is_gone_says_so(live_page: Page, served: Server) -> None:
    live_page.goto(served.address)
    live_page.route("**/runs.json", lambda route: route.fulfill(status=200, body="no list"))
    live_page.get_by_text("The server does not answer any more").wait_for()
    assert live_page.get_by_role("link").count() == 3
    assert not sticks_out(live_page)
    picture(live_page, "serve-gone")
