from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.accounting.events import Adjacency
from lehr.certificates.guarantee import claim_to_json
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.errors import InvalidValue
from lehr.planning.simulation import simulate
from lehr.reports.compare_page import HEADINGS, MOST_RUNS, named, render, row
from tests.certificates.conftest import PUBLISHED
from tests.reports.pages import Page
from tests.written_runs import PLAN, configuration, evaluations, write_run

LARGEST = 5_000_000  # bytes; nearly all of it is the drawing library
SIMULATED = simulate(PLAN, expected_batch_size=4)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "first"
    write_run(directory)
    return read_run(directory)


def with_config(record: RunRecord, **sections: object) -> RunRecord:
    return replace(record, config={**record.config, **sections})


@pytest.fixture(scope="module")
def several(record: RunRecord) -> list[RunRecord]:
    """One with a promise, one by a paper's rule, and three that promise nothing for different reasons."""
    public = with_config(record, run="open", data={**record.config["data"], "declared": "public"})
    return [
        record,
        with_config(record, run="paper", claims={"published": claim_to_json(PUBLISHED)}),
        replace(public, certificate=None),
        replace(public, plan=SIMULATED, planned=SIMULATED.event, config={**public.config, "run": "small"}),
        replace(with_config(record, run="plain"), plan=None, certificate=None),
    ]


@pytest.fixture(scope="module")
def page(several: list[RunRecord]) -> Page:
    several = [several[0], several[1], several[2], replace(several[3], certificate=None), several[4]]
    return Page(render(several))


def test_runs_that_promise_nothing_are_called_so_wherever_their_name_stands(page: Page) -> None:
    names = {line["name"] for chart in json.loads(page.scripts[0]) for line in chart["lines"]}
    assert {"first try", "paper", "open [no privacy]", "plain [no privacy]"} < names
    assert "small [simulation: no privacy]" in names
    for name in ("open", "plain"):
        assert page.words.count(name + " ") == page.words.count(f"{name} [no privacy]") > 0


def test_only_runs_with_an_epsilon_are_drawn_against_it_and_the_others_are_named(page: Page) -> None:
    charts = {chart["element"]: [line["name"] for line in chart["lines"]] for chart in json.loads(page.scripts[0])}
    assert charts["accuracy"] == charts["loss"] == charts["spent"] == ["first try", "paper"]
    assert len(charts["accuracy-steps"]) == len(charts["loss-steps"]) == 5
    assert "Not on the charts against ε: open [no privacy]: it has no ε;" in page.words


def test_what_is_promised_comes_first_and_in_words(page: Page) -> None:
    assert page.words.index("Guarantees") < page.words.index("Accuracy against ε")
    assert "paper: ε = 0.20393 at δ = 1e-05, proven (certified), for one image, add-or-remove-one." in page.words
    assert "plain [no privacy]: no guarantee: it was trained without noise." in page.words


def test_the_table_has_both_numbers_and_what_they_are(several: list[RunRecord]) -> None:
    first, paper, open_, *_ = (dict(zip(HEADINGS, row(run), strict=True)) for run in named(several))
    assert (first["ε, proven"], first["ε as published"]) == ("0.20393 at δ = 1e-05", "–")
    assert paper["ε as published"] == "1 — not a guarantee: the choice looks at the records"
    assert (open_["ε, proven"], open_["Declared"]) == ("none", "public")
    assert (first["Accuracy"], first["Steps taken"], first["Time"]) == ("95.00% on test", "40", "less than a minute")


def test_runs_of_one_name_are_told_apart(record: RunRecord) -> None:
    other = replace(record, directory=Path("elsewhere/second"))
    assert [run.name for run in named([record, other])] == ["first try (first)", "first try (second)"]
    same = replace(record, directory=Path("elsewhere/first"))
    assert len({run.name for run in named([record, same])}) == 2


def test_what_makes_runs_hard_to_compare_is_said(record: RunRecord) -> None:
    plan = replace(PLAN, delta=1e-6, adjacency=Adjacency.REPLACE_ONE)
    other = with_config(record, run="b", data={**record.config["data"], "name": "letters"})
    other = replace(other, plan=plan, planned=plan.event, certificate=None, evaluations=tuple(evaluations(on="own")))
    words = Page(render([record, other])).words
    for warning in ("different δ (1e-06, 1e-05)", "adjacency relations", "digits, letters", "own, test"):
        assert warning in words
    assert "hard" not in words
    assert "different δ" not in Page(render([record, with_config(record, run="b")])).words


def test_the_largest_page_stays_small(record: RunRecord) -> None:
    rows = [
        replace(row, accuracy_by_class=(1 / 3,) * 10, noise_multiplier=1 / 3, clip_norm=1 / 3)
        for row in evaluations(range(1, 301), accepted=0.7)
    ]
    runs = [
        with_config(replace(record, evaluations=tuple(rows)), run=f"a run with quite a long name, number {number}")
        for number in range(MOST_RUNS)
    ]
    assert len(render(runs).encode()) < LARGEST


@pytest.mark.parametrize("count", [0, 1, MOST_RUNS + 1])
def test_too_few_or_too_many_are_refused(record: RunRecord, count: int) -> None:
    with pytest.raises(InvalidValue, match="2 to 20 on one page"):
        render([record] * count)


def test_hostile_names_are_words_and_nothing_else(record: RunRecord, tmp_path: Path) -> None:
    attack = "</title></script><script>alert('x')</script><b onclick=y>{{ 7 * 7 }}"
    write_run(tmp_path / "run", config=configuration(run=attack, data={"name": attack}))
    text = render([record, read_run(tmp_path / "run")])
    assert attack not in text
    assert len(Page(text).scripts) == 3
    assert "b" not in {tag for tag, _ in Page(text).tags}
