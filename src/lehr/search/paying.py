"""The budget of a data set as a search uses it: all of the search is reserved before its first trial.

What a composition did to choose its winner is paid for under a name of its own, beside the winner. Nothing is ever
given back: that would say how much of it was used, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lehr.errors import BudgetExceeded, InvalidValue
from lehr.events import NOTHING, Event
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.search_cost import Composition, RepeatedSelection
from lehr.reports import issuing
from lehr.reports.certificate import SharedBudget
from lehr.search.paid import PaidSearch


def reserve(budget: Path, paid: PaidSearch, *, name: str, run_id: str) -> None:
    """Set the whole search aside, if that is not done; refused, with what would fit, where there is not that much left.

    It is for a search of which no trial began: a process may have been killed at any point of this, and does it again.
    """
    with Budget.open(budget) as account:
        known = _known(account, paid, name, run_id)
        if not known:
            _refuse_other_adjacency(account, paid)
            _refuse_too_much(account, paid, name)
        entries = _entries(paid, name)
        try:
            for run, event in entries.items():
                if run not in known:
                    account.reserve(event, run=run, run_id=run_id)
        except BudgetExceeded:  # another process has reserved since it was looked
            for run in _known(account, paid, name, run_id):
                account.settle(run, used=NOTHING)
            raise
        for run, status in _known(account, paid, name, run_id).items():
            if not status.is_settled:
                account.settle(run, used=entries[run])


def refuse_unreserved(budget: Path, paid: PaidSearch, *, name: str, run_id: str | None) -> None:
    """Refuse to go on with a search that the budget has not set aside, or has given back."""
    with Budget.open(budget) as account:
        if missing := _entries(paid, name).keys() - _known(account, paid, name, run_id).keys():
            allowed = f"one that has reserved for {', '.join(map(repr, sorted(missing)))}"
            raise InvalidValue("budget", allowed=allowed, given=str(budget))


def shared(budget: Path, *, name: str) -> SharedBudget:
    """The budget as the certificate of the winner tells it."""
    with Budget.open(budget) as account:
        return issuing.shared_budget(account.status(), run=name)


def dataset_of(budget: Path | None) -> str | None:
    """The name of the data set that a budget is for."""
    if budget is None:
        return None
    with Budget.open(budget) as account:
        return account.dataset


def _entries(paid: PaidSearch, name: str) -> dict[str, Event]:
    event, cost = paid.price.certified(paid.trial_event)
    return {name: event} | ({} if cost is None else {f"{name}, the other trials": cost})


def _known(account: Budget, paid: PaidSearch, name: str, run_id: str | None) -> dict[str, RunStatus]:
    """What of the search the budget has set aside; refused where another has its name, or it was given back."""
    entries = _entries(paid, name)
    found = {run.run: run for run in account.status().runs if run.run in entries}
    if taken := [run for run, status in found.items() if status.run_id != run_id]:
        allowed = "one that the budget has not seen yet: each search has its own"
        raise InvalidValue("name", allowed=allowed, given=", ".join(sorted(taken)))
    for run, status in found.items():
        if status.charged != entries[run]:
            allowed = f"one that has reserved {entries[run]} for {run!r}"
            raise InvalidValue("budget", allowed=allowed, given=f"one that has {status.charged}")
    return found


def _refuse_other_adjacency(account: Budget, paid: PaidSearch) -> None:
    if (counted_by := account.status().adjacency) is not paid.plan.adjacency:
        allowed = f"that of the budget, {counted_by.value}"
        raise InvalidValue("adjacency", allowed=allowed, given=paid.plan.adjacency.value)


def _refuse_too_much(account: Budget, paid: PaidSearch, name: str) -> None:
    if account.largest_steps(paid.event) >= 1:
        return
    status = account.status()
    raise BudgetExceeded(
        f"the search {name!r} is refused: the budget of {status.dataset!r} is ε = {status.epsilon:g} at "
        f"δ = {status.delta:g}, of which ε = {status.epsilon_spent:.4g} is spent, and {paid.event} does not fit into "
        f"the rest; {_advice(account, paid)}"
    )


def _advice(account: Budget, paid: PaidSearch) -> str:
    """What of such a search would fit."""
    match paid.price:
        case Composition():
            fit = account.largest_steps(paid.trial_event)
            return f"of its {paid.price.trials} trials {fit} would fit"
        case RepeatedSelection(mean=mean, shape=shape):
            found = _largest(mean, lambda value: _fits(account, RepeatedSelection(mean=value, shape=shape), paid))
            if found is None:
                return "not even a mean of one trial would fit"
            return f"a mean of {found:.3g} trials would fit"


def _fits(account: Budget, price: RepeatedSelection, paid: PaidSearch) -> bool:
    return account.largest_steps(price.event(paid.trial_event)) >= 1


def _largest(mean: float, fits: Callable[[float], bool]) -> float | None:
    """The largest mean that fits, to a hundredth of it, and never more than that."""
    low, high = 1.0, mean
    if not fits(low):
        return None
    while high > 1.01 * low:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if fits(middle) else (low, middle)
    return float(f"{low:.3g}") if fits(float(f"{low:.3g}")) else low * 0.99
