from __future__ import annotations

import pytest

from experiments.experiment import Statistic, experiments, key_of
from experiments.line_by_line import FOUR, UNEXPLAINED, Kept, Line, difference
from experiments.store import Entry
from tests.experiments.made_up_jobs import tiny
from tools.fill_tables import DOCS

PAGE = (DOCS / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", FOUR)
def test_the_page_has_every_table_and_figure(paper: str) -> None:
    printed = [each.name for each in experiments(paper) if each.name.startswith(("table", "figure", "spread"))]
    assert printed
    for name in printed:
        assert f"<!-- line by line {paper} {name} -->" in PAGE


def _entry(seconds: float, *, machine: str = "NVIDIA H200", **changed: object) -> Entry:
    result = {"accuracy": 0.9, "seconds": seconds}
    return {"job": tiny(**changed).to_json(), "result": result, "machine": machine}


def _kept(*entries: Entry) -> Kept:
    return Kept({key_of(entry["job"]): entry for entry in entries})


@pytest.mark.parametrize(
    "printed, values, words",
    [
        (0.9, (0.905, 0.901), "comes out"),
        (0.9, (0.895,), "too few"),
        (0.9, (0.92, 0.93), UNEXPLAINED),
        (0.9, (0.88,), UNEXPLAINED),
        (None, (0.9,), "no number"),
    ],
)
def test_more_than_a_point_needs_an_explanation(printed: float | None, values: tuple[float, ...], words: str) -> None:
    assert words in difference(printed, Statistic(values))


def test_minutes_are_those_of_a_gpu() -> None:
    kept = _kept(_entry(60.0, seed=0), _entry(600.0, seed=1, machine="2 CPU cores"))
    assert kept.minutes([tiny(seed=0), tiny(seed=1), tiny(seed=2)]) == 1.0
    assert kept.minutes([tiny(seed=2)]) is None


def test_a_missing_run_is_estimated_from_the_one_most_like_it() -> None:
    steps = tiny().to_json()["steps"]
    kept = _kept(_entry(60.0, seed=0), _entry(9000.0, seed=0, views=16))
    assert kept.missing([tiny(seed=0)]) == ""
    assert "1 run missing (about 2 GPU minutes)" in kept.missing([tiny(seed=0), tiny(seed=1, steps=2 * steps)])
    assert "no kept run" in _kept().missing([tiny()])


def test_a_row_says_what_is_not_run() -> None:
    kept = _kept(_entry(60.0, seed=0), _entry(60.0, seed=1))
    whole = Line(what="a", printed=0.9, jobs=[tiny(seed=0), tiny(seed=1)]).row(kept)
    assert whole[1:3] == ("90.00", "90.00 ± 0.00 (2)")
    assert str(whole[3]).startswith("comes out")
    assert "1 run missing" in str(Line(what="a", printed=0.9, jobs=[tiny(seed=0), tiny(seed=2)]).row(kept)[3])
    assert str(Line(what="a", printed=0.9, jobs=[tiny(seed=2)]).row(kept)[3]).startswith("not run")
