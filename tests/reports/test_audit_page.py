from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.auditing.bounds import epsilon_from_mu, mu_from_rates
from lehr.reports.audit_page import render
from tests.audits import ALONE, HOLDING, NOTHING_SHOWN, REFUTED, SUSPICIOUS
from tests.reports.pages import Page, chart_lines, charts


@pytest.fixture(scope="module")
def text() -> str:
    return render([HOLDING, replace(REFUTED, subject="half <b>the</b> noise"), SUSPICIOUS], title="Audit of 3 methods")


def test_page_has_every_verdict_bound_and_check(text: str) -> None:
    words = Page(text).words
    assert "1 refuted and 1 suspicious of 3" in words
    assert "Nothing is refuted" in Page(render([HOLDING], title="Audit")).words
    for expected in ("not refuted", "REFUTED", "SUSPICIOUS", "2.6123", "87 %", "Clopper-Pearson", "it does not hold"):
        assert expected in words
    assert "<b>the</b>" not in text


def test_roc_is_that_of_the_attack_and_the_claim_bounds_it(text: str) -> None:
    lines = chart_lines(text, "audit-roc-0")
    assert (lines["this attack"]["x"], lines["this attack"]["y"]) == ([0.0, 0.25, 1.0], [0.0, 0.5, 1.0])
    for positive, found in zip(lines["the claim"]["x"], lines["the claim"]["y"], strict=True):
        assert found <= 1e-5 + math.exp(3.0) * positive + 1e-12
        assert math.exp(3.0) * (1 - found) >= 1 - 1e-5 - positive - 1e-12


def test_gaussian_line_has_just_the_claimed_epsilon(text: str) -> None:
    line = chart_lines(text, "audit-roc-0")["Gaussian noise of that ε"]
    middle = len(line["x"]) // 2
    mu = mu_from_rates(line["x"][middle], 1 - line["y"][middle])
    assert epsilon_from_mu(float(mu), delta=1e-5) == pytest.approx(3.0, rel=1e-6)


def test_lines_that_mean_nothing_are_left_out() -> None:
    page = render([replace(HOLDING, bounds=(ALONE,))], title="Audit")
    assert set(chart_lines(page, "audit-roc-0")) == {"this attack", "the claim", "guessing"}
    page = render([replace(NOTHING_SHOWN, claimed_epsilon=math.inf)], title="Audit")
    assert set(chart_lines(page, "audit-roc-0")) == {"this attack", "guessing"}
    assert charts(render([replace(HOLDING, roc=())], title="Audit")) == {}
