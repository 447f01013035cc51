from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.configuration import Configuration
from lehr.reports.rounding import at_most
from lehr.reports.search_rows import Row
from lehr.search.finishing import finish
from lehr.search.study import Study
from lehr.search.terms import free_terms
from tests.search.synthetic import a_search

ROWS = [
    Row(number=0, state="done", score=0.4, parameters={"optimizer": "adam", "learning_rate": 0.02}),
    Row(number=1, state="done", score=0.6, parameters={"optimizer": "sgd", "learning_rate": 0.2, "momentum": 0.9}),
    Row(number=2, state="failed", score=None, parameters={"optimizer": "adam", "learning_rate": 1.0}, note="diverged"),
]


def a_study(folder: Path, **words: Any) -> Study:
    search = a_search(folder, **words)
    directory = folder / "study"
    directory.mkdir(exist_ok=True)
    return Study(search=search, terms=free_terms(search), directory=directory, name="s")


def test_the_best_trial_is_written_as_a_configuration_and_on_a_page(tmp_path: Path) -> None:
    finished = finish(a_study(tmp_path), ROWS)
    assert finished.best == ROWS[1]
    assert finished.winner is not None
    assert Configuration.read(finished.winner).method == {"clip_norm": 1.0, "learning_rate": 0.2, "momentum": 0.9}
    page = finished.page.read_text()
    assert "60.00%" in page
    assert "learning_rate = 0.2" in page
    assert "synthetic" in page


def test_where_nothing_was_scored_there_is_a_page_and_no_winner(tmp_path: Path) -> None:
    finished = finish(a_study(tmp_path), ROWS[2:])
    assert (finished.best, finished.winner) == (None, None)
    assert "diverged" in finished.page.read_text()


def test_a_later_winner_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    study = a_study(tmp_path)
    finish(study, ROWS[:1])
    winner = finish(study, ROWS).winner
    assert winner is not None
    assert Configuration.read(winner).method["momentum"] == 0.9


@pytest.mark.parametrize("factor", [1, 2])
def test_a_winner_that_costs_another_epsilon_than_the_configuration_says_so(tmp_path: Path, factor: int) -> None:
    study = a_study(tmp_path, space={"batch_factor": [1, 2]})
    winner = finish(study, [Row(number=0, state="done", score=0.4, parameters={"batch_factor": factor})]).winner
    assert winner is not None
    _, plan = Configuration.read(winner).method_and_plan()
    told = f"would cost ε = {at_most(plan.bound().epsilon)} at δ = 0.001"
    assert (told in winner.read_text()) == (factor == 2)
