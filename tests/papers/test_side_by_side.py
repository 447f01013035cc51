"""The methods beside one another: read off the papers' runs, at what is proven."""

from __future__ import annotations

import pytest

from lehr.papers.experiment import Outcome, Outcomes, Size
from lehr.papers.job import Job, Training, key_of
from lehr.papers.sa_dpsgd_costs import proven_epsilon
from lehr.papers.sa_dpsgd_runs import FASHION_MNIST, MNIST, TANH, runs_of
from lehr.papers.side_by_side import EXPERIMENTS, after
from lehr.papers.table import Measured

[SIDE_BY_SIDE] = EXPERIMENTS


def _outcome(job: Job) -> Outcome:
    """Its accuracy at a look is the share of the steps that are done."""
    assert isinstance(job, Training)
    every = job.evaluate_every or job.steps
    looks = [*range(every, job.steps + 1, every)]
    rows = [[step, step, step / 1e6, 0.1] for step in looks]
    return {"accuracy": 0.5, "trajectory": rows, "epsilon_proven": 2.5}


def _all(size: Size) -> Outcomes:
    return Outcomes({key_of(job): _outcome(job) for job in SIDE_BY_SIDE.jobs(size)})


def test_accuracies_are_read_at_the_last_look_within_a_proven_epsilon_of_three() -> None:
    images, _ = SIDE_BY_SIDE.shown(_all(Size()), Size()).tables
    rows = {row[0]: row for row in images.rows}
    assert rows[TANH.title][1] == Measured((7209 / 1e6,) * 5)
    assert rows[TANH.title][3] == Measured((1768 / 1e6,) * 5)
    for setting, place in ((MNIST, 2), (FASHION_MNIST, 4)):
        epsilon = rows[TANH.title][place]
        assert isinstance(epsilon, float)
        assert epsilon <= 3
        assert proven_epsilon(setting, setting.proven_steps + 1) > 3


def test_what_is_published_without_a_proof_has_no_epsilon() -> None:
    _, components = SIDE_BY_SIDE.shown(_all(Size()), Size()).tables
    proven = {row[0]: row[2] for row in components.rows}
    assert proven["ADADP, published"] == "nothing proven"
    assert isinstance(proven["ADADP, proven"], float)


@pytest.mark.parametrize("is_quick", [False, True])
def test_without_outcomes_no_accuracy_is_shown(is_quick: bool) -> None:
    size = Size(is_quick=is_quick)
    for table in SIDE_BY_SIDE.shown(Outcomes({}), size).tables:
        assert all(cell.values == () for row in table.rows for cell in row if isinstance(cell, Measured))


def test_a_quick_one_says_so_and_no_job_is_its_own() -> None:
    tables = SIDE_BY_SIDE.shown(Outcomes({}), Size(is_quick=True)).tables
    assert all(table.title.startswith("Quick") for table in tables)
    keys = {key_of(job) for job in SIDE_BY_SIDE.jobs(Size())}
    assert {key_of(job) for job in runs_of(MNIST, TANH, Size())} <= keys


def test_an_accuracy_that_was_not_looked_at_is_none() -> None:
    outcome = {"trajectory": [[10, 9, 0.7, 1.0]]}
    assert after(outcome, 10) == 0.7
    assert after(outcome, 9) is None
