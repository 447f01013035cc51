"""Whether acceptance pays: pairs of one seed, and settings in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.methods import by_name
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.sa_dpsgd_acceptance import EXPERIMENTS, Tried
from lehr.papers.sa_dpsgd_runs import FASHION_MNIST, MNIST
from lehr.papers.table import Measured

ACCEPTANCE, SEARCH = EXPERIMENTS
FULL = Size()


def trainings(jobs: list[Any]) -> list[Training]:
    assert all(isinstance(job, Training) for job in jobs)
    return jobs


def outcome(accuracy: float, accepted: int = 7245) -> dict[str, Any]:
    return {"accuracy": accuracy, "accepted": accepted, "candidates": 7245}


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_job_can_be_made_charges_every_candidate_and_is_scored_on_the_other_half(experiment: Any) -> None:
    for job in trainings(experiment.jobs(FULL)):
        method = by_name.named(job.method, **job.settings)
        assert (method.name, method.published) == (job.method, None)
        assert job.scored_on == "half"
        assert job.steps == {"mnist": 7245, "fashion-mnist": 1771}[job.data]


def test_what_is_searched_on_is_not_reported() -> None:
    assert {job.seed for job in trainings(ACCEPTANCE.jobs(FULL))} == {0, 1, 2, 3, 4}
    assert {job.seed for job in trainings(SEARCH.jobs(FULL))} == {100, 101}


def test_as_many_were_tried_as_the_results_page_says() -> None:
    tried = {key_of(job): job for job in trainings(SEARCH.jobs(FULL)) if job.seed == 100}
    methods = [job.method for job in tried.values()]
    assert (methods.count("dpsgd"), methods.count("sa-dpsgd")) == (29, 68)


def test_a_job_has_only_the_words_that_are_given() -> None:
    job = Tried(rate=4.0, annealed=True, threshold=2, salvage=True, falls_to=0.1, decay=0.99).run(FASHION_MNIST, 3)
    assert job.settings == {
        "learning_rate": 4.0,
        "rejection_threshold": 2,
        "salvage": True,
        "schedule": {"kind": "linear-decay", "steps": 1771, "first": 1.0, "last": 0.1},
    }
    assert job.averaging == {"kind": "exponential", "decay": 0.99}
    assert Tried(rate=0.5).run(MNIST, 0).settings == {"learning_rate": 0.5}


def test_settings_are_told_in_words() -> None:
    tried = Tried(rate=0.5, annealed=True, threshold=1, temperature=0.1, step_scales=(0.5, 1.0), decay=0.998)
    said = "SA-DPSGD, rate 0.5, at most 1 rejection in a row, Q0 0.1, 2 step sizes, weights averaged (0.998)"
    assert tried.title == said


def test_differences_are_between_runs_of_one_seed() -> None:
    base, other = Tried(rate=0.5), Tried(rate=0.5, annealed=True)
    found = {key_of(base.run(MNIST, seed)): outcome(0.97 + 0.001 * seed) for seed in range(4)}
    found |= {key_of(other.run(MNIST, seed)): outcome(0.968 + 0.001 * seed, 5000) for seed in (1, 2)}
    found[key_of(other.run(MNIST, 3))] = outcome(0.973, 5000)
    table = ACCEPTANCE.shown(Outcomes(found), FULL).tables[0]
    [row] = [row for row in table.rows if row[0] == other.title]
    assert row[1] == Measured((0.969, 0.97, 0.973))
    assert row[2] == Measured((5000 / 7245,) * 3)
    assert row[3] == "−0.13, p 0.18"  # a paired t-test of -0.2, -0.2 and 0
    assert row[4] is None


def test_differences_that_are_all_alike_have_a_p_value_too() -> None:
    base, other = Tried(rate=0.5), Tried(rate=0.5, annealed=True)
    found = {key_of(tried.run(MNIST, seed)): outcome(0.98) for tried in (base, other) for seed in range(2)}
    table = ACCEPTANCE.shown(Outcomes(found), FULL).tables[0]
    [row] = [row for row in table.rows if row[0] == other.title]
    assert row[3] == "+0.00, p 1"


def test_the_search_shows_each_setting_with_the_seeds_it_was_tried_with() -> None:
    tried = Tried(rate=1.0)
    found = Outcomes({key_of(tried.run(MNIST, seed)): outcome(0.97) for seed in (100, 101)})
    table = SEARCH.shown(found, FULL).tables[0]
    assert len(table.rows) == 44
    [row] = [row for row in table.rows if row[0] == "DPSGD, rate 1"]
    assert row[1:] == (Measured((0.97,)), Measured((1.0,)))


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_every_run_is_kept_in_the_repository(experiment: Any) -> None:
    kept = Path(__file__).parents[2] / f"results/papers/sa-dpsgd_{experiment.name}.json"
    entries = json.loads(kept.read_text(encoding="utf-8"))["entries"]
    assert {key_of(job) for job in experiment.jobs(FULL)} == set(entries)
