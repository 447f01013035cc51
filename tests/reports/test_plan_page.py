from __future__ import annotations

import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from lehr.accounting import PassedOver
from lehr.planning.plan import Plan
from lehr.reports.curve import Point, points
from lehr.reports.plan_page import render

PLAN = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=500, delta=1e-5)
LARGEST = 5_000_000  # bytes; nearly all of it is the drawing library


class _Reader(HTMLParser):
    """The elements of a page, and the text of its scripts and of everything else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words += " " + " ".join(data.split())


@pytest.fixture(scope="module")
def curve() -> tuple[Point, ...]:
    return points(PLAN)


@pytest.fixture(scope="module")
def page(curve: tuple[Point, ...]) -> str:
    return render(PLAN, bound=PLAN.bound(), claim=PLAN.claim(), points=curve)


@pytest.fixture(scope="module")
def read(page: str) -> _Reader:
    return _Reader(page)


def test_the_page_is_one_file_that_asks_the_network_for_nothing(page: str, read: _Reader) -> None:
    assert len(page.encode()) < LARGEST
    assert not any("src" in attributes or "href" in attributes for _, attributes in read.tags)
    policies = [a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none'")


def test_the_page_suits_phones_and_dark_screens(page: str, read: _Reader) -> None:
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in read.tags]
    assert "prefers-color-scheme: dark" in page


def test_numbers_and_claim_are_in_the_words(read: _Reader) -> None:
    claim = PLAN.claim()
    for words in ("1.23", "60,000", "512", "500", "add-or-remove-one", "1e-05", claim.theorem, "proven"):
        assert words in read.words


def test_the_curve_is_in_the_page_as_data(read: _Reader, curve: tuple[Point, ...]) -> None:
    drawn = json.loads(read.scripts[0])
    assert list(zip(drawn["steps"], drawn["epsilon"], strict=True)) == [(point.steps, point.epsilon) for point in curve]


def test_everything_is_escaped(curve: tuple[Point, ...]) -> None:
    attack = "</script><script>alert('x')</script><b onclick=y>&amp;"
    bound = replace(PLAN.bound(), accountant=attack, passed_over=(PassedOver(attack, attack),))
    page = render(PLAN, bound=bound, claim=replace(PLAN.claim(), theorem=attack), points=curve)
    read = _Reader(page)
    assert attack not in page
    assert len(read.scripts) == 3
    assert "alert('x')" in read.words
    assert "b" not in {tag for tag, _ in read.tags}


def test_an_infinite_epsilon_has_no_curve_and_no_script(curve: tuple[Point, ...]) -> None:
    bound = replace(PLAN.bound(), epsilon=math.inf)
    endless = tuple(replace(point, epsilon=math.inf) for point in curve)
    page = render(PLAN, bound=bound, claim=PLAN.claim(), points=endless)
    assert "this plan protects nobody" in page
    assert _Reader(page).scripts == []
