"""The budget of a data set, as a run uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting.events import NOTHING, Adjacency, Event, Repeated, counted
from lehr.errors import BudgetExceeded, InvalidValue, StoreError
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.run.folder import RunFolder
from lehr.run.private_run import ensure_reservation, reserve_plan, return_unused
from lehr.run.replay import RunPlan
from lehr.training import ending
from tests.run.test_folder import CONFIG
from tests.training.tiny import new_budget

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)
ALLOWANCE = RunPlan(plan=PLAN)


def new_folder(path: Path, *, steps: int = 5, adjacency: Adjacency = PLAN.adjacency) -> RunFolder:
    event = Repeated(PLAN.step_event, steps)
    return RunFolder.create(
        path,
        config={**CONFIG, "run": "first"},
        key=RunKey.fresh(),
        plan_event=event,
        delta=1e-3,
        adjacency=adjacency,
        fingerprint=lambda key: "mark",
    )


def runs_of(budget: Path) -> tuple[RunStatus, ...]:
    with Budget.open(budget) as account:
        return account.status().runs


def test_a_budget_is_known_by_its_data_set(tmp_path: Path) -> None:
    assert ending.dataset_of(new_budget(tmp_path / "budget")) == "tiny images"


def test_what_is_expected_is_what_it_will_be_once_reserved(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    expected = ending.expected_budget(budget, ALLOWANCE, "first")
    with Budget.open(budget) as account:
        assert account.status().runs == ()  # looking reserves nothing
    reserve_plan(budget, new_folder(tmp_path / "run")).close()
    assert ending.expected_budget(budget, ALLOWANCE, "first") == expected
    assert counted(expected.charged) == {PLAN.step_event: 5}


def test_a_run_that_is_refused_leaves_no_folder_and_no_reservation(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(InvalidValue, match="adjacency must be that of the budget"):
        reserve_plan(budget, new_folder(tmp_path / "run", adjacency=Adjacency.REPLACE_ONE))
    with pytest.raises(BudgetExceeded):
        reserve_plan(new_budget(tmp_path / "small", epsilon=0.3), new_folder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    assert not runs_of(budget)
    reserve_plan(budget, new_folder(tmp_path / "run")).close()
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
        reserve_plan(budget, new_folder(tmp_path / "another"))
    assert not (tmp_path / "another").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreError("no space left")])
def test_a_run_that_is_stopped_while_it_reserves_can_be_resumed(
    tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = new_budget(tmp_path / "budget")

    def stopped(self: Budget, *_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Budget, "reserve", stopped)
        with pytest.raises(type(error)):
            reserve_plan(budget, new_folder(tmp_path / "run"))
    assert not runs_of(budget)
    with RunFolder.open(tmp_path / "run") as folder:
        ensure_reservation(budget, folder)
        ensure_reservation(budget, folder)
        assert [paid.run_id for paid in runs_of(budget)] == [folder.run_id]


def test_settling_gives_back_the_rest_and_again_does_no_harm(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with reserve_plan(budget, new_folder(tmp_path / "run")) as folder:
        folder.ledger.record(Repeated(PLAN.step_event, 2))
        return_unused(budget, run="first", ledger=folder.ledger)
        once = ending.shared_budget(budget, "first")
        return_unused(budget, run="first", ledger=folder.ledger)
        assert ending.shared_budget(budget, "first") == once
        assert folder.ledger.is_finished()
        ensure_reservation(budget, folder)  # a run that is over may be resumed: nothing more can be charged
    assert counted(once.charged) == {PLAN.step_event: 2}


@pytest.mark.parametrize("used", [NOTHING, Repeated(PLAN.step_event, 2)])
def test_a_run_whose_reservation_was_given_back_does_not_go_on(tmp_path: Path, used: Event) -> None:
    budget = new_budget(tmp_path / "budget")
    with reserve_plan(budget, new_folder(tmp_path / "run")) as folder:
        with Budget.open(budget) as account:
            account.settle("first", used=used)
        with pytest.raises(InvalidValue, match="not settled"):
            ensure_reservation(budget, folder)
        folder.ledger.record(Repeated(PLAN.step_event, 3))
        folder.ledger.finish()
        with pytest.raises(InvalidValue, match="not settled"):
            ensure_reservation(budget, folder)
        with pytest.raises(InvalidValue, match="not settled"):
            return_unused(budget, run="first", ledger=folder.ledger)


def test_a_reservation_of_another_run_of_the_same_name_pays_for_nothing(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with new_folder(tmp_path / "killed") as killed:  # before it could reserve
        reserve_plan(budget, new_folder(tmp_path / "run")).close()
        with pytest.raises(InvalidValue, match="budget must be the one with the reservation"):
            ensure_reservation(budget, killed)


def test_a_budget_that_set_aside_nothing_or_something_else_is_refused(tmp_path: Path) -> None:
    budget, other = new_budget(tmp_path / "budget"), new_budget(tmp_path / "other")
    with reserve_plan(other, new_folder(tmp_path / "run", steps=6)) as folder:
        folder.ledger.record(PLAN.step_event)
        with pytest.raises(InvalidValue, match="budget must be the one with the reservation"):
            ensure_reservation(budget, folder)
        with Budget.open(budget) as account:
            account.reserve(Repeated(PLAN.step_event, 5), run="first", run_id=folder.run_id)
        with pytest.raises(InvalidValue, match="ledger must be that of the plan"):
            ensure_reservation(budget, folder)
