from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from lehr.accounting import PassedOver
from lehr.planning.plan import Plan
from lehr.reports.curve import Point, points
from lehr.reports.plan_page import render
from tests.reports.pages import Page

PLAN = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=500, delta=1e-5)
LARGEST = 5_000_000  # bytes; nearly all of it is the drawing library


@pytest.fixture(scope="module")
def curve() -> tuple[Point, ...]:
    return points(PLAN)


@pytest.fixture(scope="module")
def page(curve: tuple[Point, ...]) -> str:
    return render(PLAN, bound=PLAN.bound(), claim=PLAN.claim(), points=curve)


@pytest.fixture(scope="module")
def read(page: str) -> Page:
    return Page(page)


def test_the_page_is_one_file_that_asks_the_network_for_nothing(page: str, read: Page) -> None:
    assert len(page.encode()) < LARGEST
    assert not any("src" in attributes or "href" in attributes for _, attributes in read.tags)
    policies = [a["content"] for tag, a in read.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert str(policies[0]).startswith("default-src 'none'")


def test_the_page_suits_phones_and_dark_screens(page: str, read: Page) -> None:
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in [a for _, a in read.tags]
    assert "prefers-color-scheme: dark" in page


def test_numbers_and_claim_are_in_the_words(read: Page) -> None:
    claim = PLAN.claim()
    for words in ("1.23", "60,000", "512", "500", "add-or-remove-one", "1e-05", claim.theorem, "proven"):
        assert words in read.words


def test_the_curve_is_in_the_page_as_data(read: Page, curve: tuple[Point, ...]) -> None:
    [chart] = json.loads(read.scripts[0])
    [drawn] = chart["lines"]
    assert list(zip(drawn["x"], drawn["y"], strict=True)) == [(point.steps, point.epsilon) for point in curve]


def test_everything_is_escaped(curve: tuple[Point, ...]) -> None:
    attack = "</script><script>alert('x')</script><b onclick=y>&amp;"
    bound = replace(PLAN.bound(), accountant=attack, passed_over=(PassedOver(attack, attack),))
    page = render(PLAN, bound=bound, claim=replace(PLAN.claim(), theorem=attack), points=curve)
    read = Page(page)
    assert attack not in page
    assert len(read.scripts) == 3
    assert "alert('x')" in read.words
    assert "b" not in {tag for tag, _ in read.tags}


def test_an_infinite_epsilon_has_no_curve_and_no_script(curve: tuple[Point, ...]) -> None:
    bound = replace(PLAN.bound(), epsilon=math.inf)
    endless = tuple(replace(point, epsilon=math.inf) for point in curve)
    page = render(PLAN, bound=bound, claim=PLAN.claim(), points=endless)
    assert "this plan protects nobody" in page
    assert Page(page).scripts == []
