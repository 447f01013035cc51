"""A run and the budget of its data set: reserving, resuming, returning the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.events import NOTHING, Adjacency, Event, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, InvalidValue, LehrError, StoreError
from lehr.methods.dpsgd import dpsgd
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.run.folder import RunFolder
from lehr.run.private_run import ensure_reservation, reserve_plan, return_unused
from lehr.run.replay import RunPlan
from lehr.training import ending
from tests.run.test_folder import CONFIG
from tests.training.test_training_run import interrupted
from tests.training.tiny import fit_tiny, new_budget

PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)
RUN_PLAN = RunPlan(plan=PLAN)


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


def test_expected_budget_is_what_reserving_gives(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    expected = ending.expected_budget(budget, RUN_PLAN, "first")
    with Budget.open(budget) as account:
        assert account.status().runs == ()  # looking reserves nothing
    reserve_plan(budget, new_folder(tmp_path / "run")).close()
    assert ending.expected_budget(budget, RUN_PLAN, "first") == expected
    assert counted(expected.charged) == {PLAN.step_event: 5}


def test_rejected_run_leaves_no_folder_and_no_reservation(tmp_path: Path) -> None:
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
def test_run_stopped_while_reserving_can_be_resumed(
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


def test_settling_returns_the_rest_once(tmp_path: Path) -> None:
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
def test_run_whose_reservation_was_returned_does_not_continue(tmp_path: Path, used: Event) -> None:
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


def test_reservation_of_another_run_with_the_same_name(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with new_folder(tmp_path / "killed") as killed:  # before it could reserve
        reserve_plan(budget, new_folder(tmp_path / "run")).close()
        with pytest.raises(InvalidValue, match="budget must be the one with the reservation"):
            ensure_reservation(budget, killed)


def test_budget_without_the_runs_reservation(tmp_path: Path) -> None:
    budget, other = new_budget(tmp_path / "budget"), new_budget(tmp_path / "other")
    with reserve_plan(other, new_folder(tmp_path / "run", steps=6)) as folder:
        folder.ledger.record(PLAN.step_event)
        with pytest.raises(InvalidValue, match="budget must be the one with the reservation"):
            ensure_reservation(budget, folder)
        with Budget.open(budget) as account:
            account.reserve(Repeated(PLAN.step_event, 5), run="first", run_id=folder.run_id)
        with pytest.raises(InvalidValue, match="ledger must be that of the plan"):
            ensure_reservation(budget, folder)


# Whole runs.


def test_budget_gets_back_what_was_not_used(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    hopeless = dpsgd(learning_rate=50.0, clip_norm=5.0, momentum=0.0)
    stopped = fit_tiny(
        tmp_path / "run", budget=budget, steps=40, method=hopeless, patience=1, evaluate_every=1, name="one"
    )
    assert stopped.certificate is None  # nobody said how the settings were chosen, and still the rest is given back
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.accepted_count() == stopped.end.accepted  # noted before the budget closes the ledger
    with Budget.open(budget) as account:
        [paid] = account.status().runs
    assert (paid.run, paid.is_settled) == ("one", True)
    assert counted(paid.charged) == {stopped.plan.step_event: stopped.end.step}
    assert counted(paid.reserved) == {stopped.plan.step_event: 40}


def test_certificate_lists_everything_its_budget_paid_for(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    fit_tiny(tmp_path / "first", budget=budget, name="first")
    run = fit_tiny(tmp_path / "second", budget=budget, name="second", settings_chosen_on="fixed")
    assert run.certificate is not None
    assert run.certificate.budget is not None
    assert [paid.run for paid in run.certificate.budget.paid_for] == ["first", "second"]
    assert json.loads((tmp_path / "second" / "config.json").read_text())["budget"] == "tiny images"


def test_settings_chosen_on_private_data_need_a_budget_that_paid(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(LehrError, match="chosen on private data"):
        fit_tiny(tmp_path / "run", budget=budget, settings_chosen_on="private", name="best")
    assert not (tmp_path / "run").exists()
    fit_tiny(tmp_path / "trial", budget=budget, name="trial")
    run = fit_tiny(tmp_path / "run", budget=budget, settings_chosen_on="private", name="best")
    assert run.certificate is not None
    assert run.certificate.epsilon == pytest.approx(20.0)


def test_budget_that_is_too_small(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget", epsilon=0.5)
    with pytest.raises(BudgetExceeded):
        fit_tiny(tmp_path / "deep" / "run", budget=budget)
    assert [path.name for path in tmp_path.iterdir()] == ["budget"]
    with Budget.open(budget) as account:
        assert account.status().runs == ()


def test_name_that_the_budget_knows(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    fit_tiny(tmp_path / "first", budget=budget, name="mine")
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen yet"):
        fit_tiny(tmp_path / "second", budget=budget, name="mine")
    assert not (tmp_path / "second").exists()


def test_paid_run_is_resumed_with_its_own_budget_only(tmp_path: Path) -> None:
    budget, other = new_budget(tmp_path / "budget"), new_budget(tmp_path / "other")
    interrupted(tmp_path / "run", budget=budget)
    with pytest.raises(InvalidValue, match="budget was 'tiny images' and is None"):
        fit_tiny(tmp_path / "run", resume=True)
    with pytest.raises(LehrError, match="dpsgd on unnamed"):
        fit_tiny(tmp_path / "run", resume=True, budget=other)
    fit_tiny(tmp_path / "run", resume=True, budget=budget)
    with Budget.open(budget) as account:
        assert [paid.is_settled for paid in account.status().runs] == [True]


@pytest.mark.parametrize("where", [(RunFolder, "open"), (Budget, "reserve")], ids=["folder", "budget"])
def test_run_interrupted_while_it_starts_is_never_free(
    where: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, reserve = new_budget(tmp_path / "budget"), Budget.reserve

    def stop(*given: Any, **named: Any) -> None:
        if where[0] is Budget:  # when it is on the disk
            reserve(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*where, stop)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tmp_path / "run", budget=budget)
    run = fit_tiny(tmp_path / "run", budget=budget, resume=True)
    with Budget.open(budget) as account:
        [paid] = account.status().runs
    assert counted(paid.charged) == {run.plan.step_event: 5}


def test_unwritable_folder_reserves_nothing(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    if os.geteuid() == 0:
        (tmp_path / "shut").write_text("a file, for root may write to any folder")
    else:
        (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="shut"):
        fit_tiny(tmp_path / "shut" / "run", budget=budget)
    with Budget.open(budget) as account:
        assert account.status().runs == ()
