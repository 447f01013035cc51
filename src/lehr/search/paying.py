"""The budget of a data set as a search uses it: all of the search is reserved before its first trial.

What a composition did to choose its winner is paid for under a name of its own, beside the winner. Nothing is ever
given back: that would say how much of it was used, and when.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lehr.errors import BudgetExceeded, InvalidValue
from lehr.events import NOTHING, Event
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, RepeatedSelection
from lehr.reports import issuing
from lehr.reports.certificate import SharedBudget
from lehr.search.paid import PaidSearch


def reserve(budget: Path, paid: PaidSearch, *, name: str) -> None:
    """Set the whole search aside; refused, with what would fit, where the budget has not that much left."""
    with Budget.open(budget) as account:
        _refuse_unfit(account, paid, name)
        _refuse_too_much(account, paid, name)
        done: list[str] = []
        try:
            for run, event in _entries(paid, name).items():
                account.reserve(event, run=run)
                done.append(run)
        except BudgetExceeded:  # another process has reserved since it was looked
            for run in done:
                account.settle(run, used=NOTHING)
            raise
        for run, event in _entries(paid, name).items():
            account.settle(run, used=event)


def refuse_unreserved(budget: Path, paid: PaidSearch, *, name: str) -> None:
    """Refuse to go on with a search that the budget has not set aside."""
    with Budget.open(budget) as account:
        for run, event in _entries(paid, name).items():
            if account.reservation(run).event != event:
                raise InvalidValue("budget", allowed=f"one that has reserved {event} for {run!r}", given=str(budget))


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


def _refuse_unfit(account: Budget, paid: PaidSearch, name: str) -> None:
    status = account.status()
    if status.adjacency is not paid.plan.adjacency:
        allowed = f"that of the budget, {status.adjacency.value}"
        raise InvalidValue("adjacency", allowed=allowed, given=paid.plan.adjacency.value)
    if taken := {run.run for run in status.runs} & _entries(paid, name).keys():
        allowed = "one that the budget has not seen yet: each search has its own"
        raise InvalidValue("name", allowed=allowed, given=", ".join(sorted(taken)))


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
