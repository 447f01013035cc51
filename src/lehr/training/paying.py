"""The budget of a data set as a run uses it: all that the plan allows is reserved first, and the rest given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.attempts import Allowance
from lehr.errors import InvalidValue
from lehr.events import NOTHING
from lehr.ledger import Ledger
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import Plan
from lehr.reports import issuing
from lehr.reports.certificate import SharedBudget


def dataset_of(budget: Path) -> str:
    """The name of the data set that a budget is for."""
    with Budget.open(budget) as account:
        return account.dataset


def expected_budget(budget: Path, allowance: Allowance, run: str) -> SharedBudget:
    """The budget as it will be once it pays for all that the run may do."""
    with Budget.open(budget) as account:
        status = account.status()
    others = tuple(paid for paid in status.runs if paid.run != run)
    ours = RunStatus(run=run, reserved=allowance.event)
    return issuing.shared_budget(replace(status, runs=(*others, ours)), run=run)


def reserve(budget: Path, allowance: Allowance, plan: Plan, *, run: str) -> None:
    """Set aside all that the run may do; refused where it does not fit, or is counted in another way."""
    with Budget.open(budget) as account:
        status = account.status()
        counted_by = status.adjacency
        if run in {paid.run for paid in status.runs}:
            raise InvalidValue("name", allowed="one that the budget has not seen yet: each run has its own", given=run)
        if counted_by is not plan.adjacency:
            raise InvalidValue(
                "adjacency", allowed=f"that of the budget, {counted_by.value}", given=plan.adjacency.value
            )
        account.reserve(allowance.event, run=run)


def give_back(budget: Path, *, run: str) -> None:
    """Give back what a run reserved that never began. Its name stays taken."""
    with Budget.open(budget) as account:
        account.settle(run, used=NOTHING)


def refuse_other_budget(budget: Path, ledger: Ledger) -> None:
    """Refuse a budget that has not set aside what the run of the ledger may do."""
    with Budget.open(budget) as account:
        reserved = account.reservation(ledger.run).event
    ledger.refuse_other(plan_event=reserved)


def settled(budget: Path, ledger: Ledger) -> SharedBudget:
    """The budget after the run gave back what it did not use. Doing so again, after a crash, does no harm."""
    with Budget.open(budget) as account:
        [ours] = (paid for paid in account.status().runs if paid.run == ledger.run)
        if not ours.is_settled:
            account.settle(ledger.run, ledger=ledger)
        return issuing.shared_budget(account.status(), run=ledger.run)
