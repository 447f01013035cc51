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
from tests.browser.looking import check_readable, empty_charts, wait_until_drawn
from tests.written_runs import configuration, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(serving, "RELOAD_SECONDS", 1)
    write_run(tmp_path / "old")
    write_run(tmp_path / HOSTILE, config=configuration(method={"name": HOSTILE}))
    write_run(tmp_path / "broken").config.write_text("{")
    server = Server(tmp_path, port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


class Onlooker(Callback):
    """Waits until the page shows what the run has just evaluated."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.rows: list[str] = []

    def evaluated(self, evaluation: Evaluation) -> None:
        row = self._page.locator("tr", has=self._page.get_by_role("link", name="live", exact=True))
        row.get_by_text(f"{evaluation.step} of 4", exact=True).wait_for()
        self.rows.append(row.inner_text())


def test_run_is_followed_while_it_trains_and_its_page_opens(live_page: Page, served: Server, tmp_path: Path) -> None:
    live_page.goto(served.address)
    live_page.get_by_role("heading", name="3 runs").wait_for()
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
    assert len(seen.rows) == 2
    assert all("training" in row and (" of 8" in row or " of 7.99" in row) for row in seen.rows)
    live_page.get_by_role("link", name="live", exact=True).click()
    live_page.get_by_role("heading", level=1, name="dpsgd").wait_for()
    assert empty_charts(wait_until_drawn(live_page)) == []


def test_list_is_readable_and_shows_names_as_text(
    live_page: Page, served: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "RELOAD_SECONDS", 60)
    live_page.goto(served.address)
    assert live_page.get_by_role("row").count() == 4
    assert live_page.get_by_role("link", name=HOSTILE).count() == 1
    assert live_page.locator("img, script").count() == 0
    assert "broken" in live_page.get_by_role("row", name="broken").inner_text()
    check_readable(live_page, "serve")
