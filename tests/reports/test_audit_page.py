from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from lehr.auditing import Check
from lehr.auditing.gaussian_tradeoff import epsilon_from_mu, mu_from_rates
from lehr.reports.audit_page import part, render
from tests.audits import ALONE, HOLDING, NOISE, NOTHING_SHOWN, REFUTED, SUSPICIOUS
from tests.reports.pages import Page


def lines(text: str, element: str) -> dict[str, Any]:
    charts = {chart["element"]: chart for chart in json.loads(Page(text).scripts[0])}
    return {line["name"]: line for line in charts[element]["lines"]}


@pytest.fixture(scope="module")
def text() -> str:
    return render([HOLDING, replace(REFUTED, subject="half <b>the</b> noise"), SUSPICIOUS], title="Audit of 3 methods")


def test_the_page_asks_the_network_for_nothing(text: str) -> None:
    assert not any("src" in attributes or "href" in attributes for _, attributes in Page(text).tags)


def test_the_worst_comes_first_and_every_verdict_is_there(text: str) -> None:
    words = Page(text).words
    assert "1 refuted and 1 suspicious, of 3" in words
    for expected in ("not refuted", "REFUTED", "SUSPICIOUS", "2.6123", "87 %", "it does not hold"):
        assert expected in words


def test_where_nothing_is_refuted_the_page_says_no_more_than_that() -> None:
    words = Page(render([HOLDING], title="Audit")).words
    assert "Nothing is refuted" in words
    assert "cannot give one" in words


def test_every_check_is_shown() -> None:
    other = Check(statement="canaries are drawn as is stated", p_value=0.7)
    words = Page(render([replace(HOLDING, checks=(NOISE, other))], title="Audit")).words
    assert NOISE.statement in words
    assert other.statement in words


def test_names_are_escaped(text: str) -> None:
    assert "<b>the</b>" not in text


def test_each_bound_says_on_what_it_rests() -> None:
    words = Page(render([HOLDING], title="Audit")).words
    assert "trade-off curve of Gaussian noise" in words
    assert "nothing beyond the game itself" in words
    assert "(decides)" in words


def test_both_curves_are_what_was_measured(text: str) -> None:
    roc = lines(text, "audit-roc-0")["this attack"]
    assert (roc["x"], roc["y"]) == ([0.0, 0.25, 1.0], [0.0, 0.5, 1.0])
    errors = lines(text, "audit-tradeoff-0")["this attack"]
    assert (errors["x"], errors["y"]) == ([0.0, 0.25, 1.0], [1.0, 0.5, 0.0])


def test_the_line_of_the_claim_is_as_far_as_it_allows(text: str) -> None:
    claim = lines(text, "audit-tradeoff-0")["the claim"]
    for positive, negative in zip(claim["x"], claim["y"], strict=True):
        assert negative >= 1 - 1e-5 - math.exp(3.0) * positive - 1e-12
        assert math.exp(3.0) * negative >= 1 - 1e-5 - positive - 1e-12


def test_gaussian_noise_of_the_claimed_epsilon_has_just_that_epsilon(text: str) -> None:
    line = lines(text, "audit-tradeoff-0")["Gaussian noise of that ε"]
    middle = len(line["x"]) // 2
    mu = mu_from_rates(line["x"][middle], line["y"][middle])
    assert epsilon_from_mu(float(mu), delta=1e-5) == pytest.approx(3.0, rel=1e-6)


def test_no_gaussian_is_drawn_where_none_is_assumed() -> None:
    page = render([replace(HOLDING, bounds=(ALONE,))], title="Audit")
    assert set(lines(page, "audit-roc-0")) == {"this attack", "the claim", "guessing"}
    assert "dotted" not in Page(page).words


def test_an_infinite_claim_has_no_line() -> None:
    page = render([replace(NOTHING_SHOWN, claimed_epsilon=math.inf)], title="Audit")
    assert set(lines(page, "audit-roc-0")) == {"this attack", "guessing"}


def test_curves_are_explained_once_on_a_page() -> None:
    assert len(part(HOLDING, place=0).explained) == 2
    assert part(HOLDING, place=1).explained == ()


def test_without_points_there_are_no_charts() -> None:
    assert part(replace(HOLDING, roc=())).charts == ()
