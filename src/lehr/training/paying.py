"""The budget of a data set as a run uses it: all that the plan allows is reserved, and the rest given back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.attempts import Allowance
from lehr.errors import InvalidValue, LehrError, StoreError
from lehr.events import NOTHING, counted
from lehr.ledger import Ledger
from lehr.planning.budget import Budget, RunStatus
from lehr.reports import issuing
from lehr.reports.certificate import SharedBudget
from lehr.run_folder import RunFolder


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


def reserved(budget: Path | None, folder: RunFolder) -> RunFolder:
    """The new folder, once all that its run may do is set aside. Where that is refused, it is gone: no run began."""
    try:
        if budget is not None:
            with Budget.open(budget) as account:
                _reserve(account, folder)
    except BaseException as error:
        # Of a file that failed, or an interrupt, nobody knows whether it came too late: resuming the run finds out.
        if isinstance(error, LehrError) and not isinstance(error, StoreError):
            folder.remove()
        folder.close()
        raise
    return folder


def refuse_unpaid(budget: Path, folder: RunFolder) -> None:
    """Refuse to resume a run for which the budget does not hold open, under its id, all that it may do.

    A run that charged nothing and that the budget does not know was stopped before it could reserve, and does so now.
    One that is over may have been settled, by what its ledger says.
    """
    ledger = folder.ledger
    with Budget.open(budget) as account:
        paid = _paid(account, ledger.run)
        is_untouched = ledger.charged() == NOTHING
        if paid is None and is_untouched:
            _reserve(account, folder)
            return
        # Before there were ids, a run that has charged something had reserved it.
        if paid is None or (paid.run_id != folder.run_id and (is_untouched or paid.run_id is not None)):
            allowed = f"the one that set aside what the run {ledger.run!r} in this folder may do"
            raise InvalidValue("budget", allowed=allowed, given=str(budget))
        ledger.refuse_other(plan_event=paid.reserved)
        _refuse_given_back(paid, ledger)


def settled(budget: Path, ledger: Ledger) -> SharedBudget:
    """The budget after the run gave back what it did not use. Doing so again, after a crash, does no harm."""
    with Budget.open(budget) as account:
        [ours] = (paid for paid in account.status().runs if paid.run == ledger.run)
        if ours.is_settled:
            _refuse_given_back(ours, ledger)
        else:
            account.settle(ledger.run, ledger=ledger)
        return issuing.shared_budget(account.status(), run=ledger.run)


def _reserve(account: Budget, folder: RunFolder) -> None:
    ledger, counted_by = folder.ledger, account.status().adjacency
    if _paid(account, ledger.run) is not None:
        raise InvalidValue(
            "name", allowed="one that the budget has not seen yet: each run has its own", given=ledger.run
        )
    if counted_by is not ledger.adjacency:
        raise InvalidValue("adjacency", allowed=f"that of the budget, {counted_by.value}", given=ledger.adjacency.value)
    account.reserve(ledger.plan_event, run=ledger.run, run_id=folder.run_id)


def _paid(account: Budget, run: str) -> RunStatus | None:
    return next((paid for paid in account.status().runs if paid.run == run), None)


def _refuse_given_back(paid: RunStatus, ledger: Ledger) -> None:
    """Refuse a run whose reservation was settled, unless it is over and all that it charged is paid for."""
    if paid.is_settled and not (ledger.is_finished() and counted(paid.used) == counted(ledger.charged())):
        allowed = "one in which the run is not settled: what it reserved was given back, and may be used by others"
        raise InvalidValue("budget", allowed=allowed, given=f"one in which {paid.run!r} is settled")
