from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from lehr.reports.progress import TrialRow
from lehr.reports.search_page import FEWEST_FOR_SHARES, render
from tests.reports.pages import Page


def rows(count: int = 12) -> list[TrialRow]:
    """Trials in which the optimizer decides, and nothing else does."""
    found = []
    for number in range(count):
        is_sgd = number % 2 == 0
        parameters: dict[str, Any] = {"optimizer": "sgd" if is_sgd else "<b>adam</b>", "rate": 10.0 ** -(number % 7)}
        parameters |= {"momentum": 0.9} if is_sgd else {}
        score = (0.8 if is_sgd else 0.4) + 0.001 * (number * 7 % 5)
        found.append(TrialRow(number=number, state="done", score=score, parameters=parameters, seconds=12.0))
    return found


def page(given: list[TrialRow], *, score: str = "accuracy") -> Page:
    return Page(
        render(
            given,
            title="Search <i>x</i>",
            score=score,
            trials=20,
            terms="free: the records are declared public",
            winner='name = "digits" <script>',
            names=["optimizer", "rate", "momentum"],
        )
    )


def data(found: Page) -> dict[str, Any]:
    [text] = [script for script in found.scripts if "crossings" in script and script.lstrip().startswith("{")]
    shape: dict[str, Any] = json.loads(text)
    return shape


def test_the_page_asks_the_network_for_nothing() -> None:
    assert not any("src" in attributes or "href" in attributes for _, attributes in page(rows()).tags)


def test_nothing_that_was_given_is_read_as_html() -> None:
    found = page(rows())
    assert not {tag for tag, _ in found.tags} & {"b", "i"}
    for shape in (data(found)["axes"], data(found)["crossings"]):
        assert "<b>" not in json.dumps(shape)


def test_the_best_trial_and_the_number_of_trials_are_said() -> None:
    given = [*rows(), TrialRow(number=12, state="failed", score=None, parameters={}, note="no longer finite")]
    words = page(given).words
    assert "80.40%" in words
    assert "12 of 20 trials done, 1 failed" in words
    assert "no longer finite" in words
    assert "declared public" in words


def test_every_trial_crosses_every_axis_and_ends_at_its_score() -> None:
    found = data(page(rows()))
    assert [axis["name"] for axis in found["axes"]] == ["optimizer", "rate", "momentum", "accuracy"]
    assert all(len(line["heights"]) == 4 for line in found["crossings"])
    assert len(found["crossings"]) == 12
    ends = [line["heights"][-1] for line in found["crossings"]]
    assert ends == sorted(ends)
    assert (found["crossings"][-1]["share"], ends[-1], ends[0]) == (1, 1, 0)


def test_a_setting_that_was_not_asked_for_is_crossed_below_its_axis() -> None:
    lines = data(page(rows()))["crossings"]
    assert {line["heights"][2] < 0 for line in lines if "adam" in line["text"]} == {True}
    assert {line["heights"][2] < 0 for line in lines if "sgd" in line["text"]} == {False}


def test_numbers_far_apart_are_drawn_by_their_logarithms() -> None:
    heights = sorted(line["heights"][1] for line in data(page(rows()))["crossings"])
    steps = {round(b - a, 6) for a, b in itertools.pairwise(heights)} - {0.0}
    assert len(steps) == 1


def test_the_setting_that_decides_has_the_largest_share_and_the_others_none() -> None:
    words = page(rows(20)).words
    shares = words[words.index("What the score depends on") :]
    assert "optimizer 100%" in shares
    assert "rate 0%" in shares


def test_few_trials_show_no_shares() -> None:
    assert "What the score depends on" not in page(rows(FEWEST_FOR_SHARES - 1)).words


def test_of_losses_the_smallest_is_the_best() -> None:
    found = page(rows(), score="loss")
    assert "0.4000" in found.words
    assert data(found)["crossings"][-1]["heights"][-1] == 0


@pytest.mark.parametrize(
    "given", [[], [TrialRow(number=0, state="running", score=None, parameters={"rate": 1.0})]], ids=["none", "running"]
)
def test_a_search_without_a_score_has_a_page_without_charts(given: list[TrialRow]) -> None:
    found = page(given)
    assert found.scripts == []
    assert f"0 of 20 trials done{', 1 running' if given else ''}" in found.words


def test_equal_scores_and_a_single_trial_are_drawn() -> None:
    for given in (rows(1), [TrialRow(number=n, state="done", score=0.5, parameters={"rate": 1.0}) for n in range(9)]):
        assert all(math.isfinite(height) for line in data(page(given))["crossings"] for height in line["heights"])
