from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.auditing import Check
from lehr.auditing.bounds import epsilon_from_mu, mu_from_rates
from lehr.reports.audit_page import render
from tests.audits import ALONE, HOLDING, NOISE, NOTHING_SHOWN, REFUTED, SUSPICIOUS
from tests.reports.pages import Page, chart_lines, charts


@pytest.fixture(scope="module")
def text() -> str:
    return render([HOLDING, replace(REFUTED, subject="half <b>the</b> noise"), SUSPICIOUS], title="Audit of 3 methods")


def test_every_verdict_is_on_the_page_and_names_are_escaped(text: str) -> None:
    words = Page(text).words
    assert "1 refuted and 1 suspicious of 3" in words
    for expected in ("not refuted", "REFUTED", "SUSPICIOUS", "2.6123", "87 %", "it does not hold"):
        assert expected in words
    assert "<b>the</b>" not in text


def test_checks_bounds_and_their_assumptions_are_shown() -> None:
    other = Check(statement="canaries are drawn as is stated", p_value=0.7)
    words = Page(render([replace(HOLDING, checks=(NOISE, other))], title="Audit")).words
    assert "Nothing is refuted" in words
    for expected in (NOISE.statement, other.statement, "trade-off curve of Gaussian noise", "(decides)"):
        assert expected in words


def test_both_curves_are_what_was_measured_and_explained_once(text: str) -> None:
    roc, errors = (chart_lines(text, f"audit-{kind}-0")["this attack"] for kind in ("roc", "tradeoff"))
    assert (roc["x"], roc["y"]) == ([0.0, 0.25, 1.0], [0.0, 0.5, 1.0])
    assert (errors["x"], errors["y"]) == ([0.0, 0.25, 1.0], [1.0, 0.5, 0.0])
    assert [bool(charts(text)[f"audit-roc-{number}"]["note"]) for number in range(3)] == [True, False, False]


def test_the_line_of_the_claim_is_as_far_as_it_allows(text: str) -> None:
    claim = chart_lines(text, "audit-tradeoff-0")["the claim"]
    for positive, negative in zip(claim["x"], claim["y"], strict=True):
        assert negative >= 1 - 1e-5 - math.exp(3.0) * positive - 1e-12
        assert math.exp(3.0) * negative >= 1 - 1e-5 - positive - 1e-12


def test_gaussian_noise_of_the_claimed_epsilon_has_just_that_epsilon(text: str) -> None:
    line = chart_lines(text, "audit-tradeoff-0")["Gaussian noise of that ε"]
    middle = len(line["x"]) // 2
    mu = mu_from_rates(line["x"][middle], line["y"][middle])
    assert epsilon_from_mu(float(mu), delta=1e-5) == pytest.approx(3.0, rel=1e-6)


def test_only_lines_that_mean_something_are_drawn() -> None:
    page = render([replace(HOLDING, bounds=(ALONE,))], title="Audit")
    assert set(chart_lines(page, "audit-roc-0")) == {"this attack", "the claim", "guessing"}
    page = render([replace(NOTHING_SHOWN, claimed_epsilon=math.inf)], title="Audit")
    assert set(chart_lines(page, "audit-roc-0")) == {"this attack", "guessing"}
    assert charts(render([replace(HOLDING, roc=())], title="Audit")) == {}
