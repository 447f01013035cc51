"""The budget of a data set, as a run uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.attempts import Allowance
from lehr.errors import BudgetExceeded, InvalidValue, LehrError
from lehr.events import Adjacency, Repeated, counted
from lehr.ledger import Ledger
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.training import paying
from tests.training.tiny import new_budget

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)
ALLOWANCE = Allowance(plan=PLAN)


def new_ledger(path: Path, *, steps: int = 5) -> Ledger:
    event = Repeated(PLAN.step_event, steps)
    return Ledger.create(path, run="first", plan_event=event, delta=1e-3, adjacency=PLAN.adjacency)


def test_a_budget_is_known_by_its_data_set(tmp_path: Path) -> None:
    assert paying.dataset_of(new_budget(tmp_path / "budget")) == "tiny images"


def test_what_is_expected_is_what_it_will_be_once_reserved(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    expected = paying.expected_budget(budget, ALLOWANCE, "first")
    with Budget.open(budget) as account:
        assert account.status().runs == ()  # looking reserves nothing
    paying.reserve(budget, ALLOWANCE, PLAN, run="first")
    assert paying.expected_budget(budget, ALLOWANCE, "first") == expected
    assert counted(expected.charged) == {PLAN.step_event: 5}


def test_a_run_counted_in_another_way_than_its_budget_is_refused(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    replacing = Plan(
        noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3, adjacency=Adjacency.REPLACE_ONE
    )
    with pytest.raises(InvalidValue, match="adjacency must be that of the budget"):
        paying.reserve(budget, ALLOWANCE, replacing, run="first")


def test_a_run_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded):
        paying.reserve(new_budget(tmp_path / "budget", epsilon=0.3), ALLOWANCE, PLAN, run="first")


def test_settling_gives_back_the_rest_and_again_does_no_harm(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    paying.reserve(budget, ALLOWANCE, PLAN, run="first")
    with new_ledger(tmp_path / "ledger.db") as ledger:
        ledger.record(Repeated(PLAN.step_event, 2))
        once = paying.settled(budget, ledger)
        assert paying.settled(budget, ledger) == once
        assert ledger.is_finished()
    assert counted(once.charged) == {PLAN.step_event: 2}


def test_a_budget_that_set_aside_something_else_is_refused(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with new_ledger(tmp_path / "ledger.db", steps=6) as ledger:
        with pytest.raises(LehrError, match="first"):
            paying.refuse_other_budget(budget, ledger)
        paying.reserve(budget, ALLOWANCE, PLAN, run="first")
        with pytest.raises(InvalidValue, match="ledger must be that of the plan"):
            paying.refuse_other_budget(budget, ledger)
