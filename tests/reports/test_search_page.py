from __future__ import annotations

from typing import Any

import pytest

from lehr.reports.progress import TrialRow
from lehr.reports.search_page import render
from tests.reports.pages import Page, chart_lines, charts


def rows(count: int = 12) -> list[TrialRow]:
    found = []
    for number in range(count):
        is_sgd = number % 2 == 0
        parameters: dict[str, Any] = {"optimizer": "sgd" if is_sgd else "<b>adam</b>", "rate": 10.0 ** -(number % 8)}
        parameters |= {"momentum": 0.9} if is_sgd else {}
        score = (0.8 if is_sgd else 0.4) + 0.001 * (number * 7 % 5)
        found.append(TrialRow(number=number, state="done", score=score, parameters=parameters, seconds=12.0))
    return found


def page(given: list[TrialRow], *, score: str = "accuracy") -> str:
    return render(
        given,
        title="Search <i>x</i>",
        score=score,
        trials=20,
        terms="free: the records are declared public",
        winner='name = "digits" <script>',
        names=["optimizer", "rate", "momentum"],
    )


def test_page_has_the_best_trial_and_all_trials() -> None:
    given = [*rows(), TrialRow(number=12, state="failed", score=None, parameters={}, note="no longer finite")]
    parsed = Page(page(given))
    for words in ("80.40%", "12 of 20 trials done, 1 failed", "no longer finite", "declared public"):
        assert words in parsed.words
    assert not {tag for tag, _ in parsed.tags} & {"b", "i"}
    assert not any("src" in attributes or "href" in attributes for _, attributes in parsed.tags)
    assert "0.4000" in Page(page(rows(), score="loss")).words  # of losses the smallest is the best


def test_score_is_drawn_against_every_setting() -> None:
    text = page(rows())
    assert [*charts(text)] == ["best", "setting-0", "setting-1"]  # and not a setting with a single value
    optimizer, rate = (chart_lines(text, f"setting-{n}")["trials"] for n in range(2))
    assert charts(text)["setting-0"]["x_labels"] == ["&lt;b&gt;adam&lt;/b&gt;", "sgd"]
    assert optimizer["x"] == [1.0, 0.0] * 6
    assert charts(text)["setting-1"]["x_scale"] == "log"
    assert (rate["x"][0], rate["y"][0]) == (1.0, 0.8)
    assert "<b>" not in str(charts(text))


@pytest.mark.parametrize("score, best", [("accuracy", max), ("loss", min)])
def test_best_so_far(score: str, best: Any) -> None:
    lines = chart_lines(page(rows(), score=score), "best")
    every = lines["each trial"]["y"]
    assert lines["best so far"]["y"] == [best(every[: n + 1]) for n in range(12)]


@pytest.mark.parametrize(
    "given", [[], [TrialRow(number=0, state="running", score=None, parameters={"rate": 1.0})]], ids=["none", "running"]
)
def test_search_without_a_score_has_no_charts(given: list[TrialRow]) -> None:
    assert charts(page(given)) == {}
    assert f"0 of 20 trials done{', 1 running' if given else ''}" in Page(page(given)).words


def test_single_trial_is_drawn() -> None:
    assert [*charts(page(rows(1)))] == ["best"]
