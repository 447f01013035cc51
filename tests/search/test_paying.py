"""A search is reserved whole, under names that a certificate can show, or refused with what would fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.errors import BudgetExceeded, InvalidValue
from lehr.events import NOTHING, Adjacency
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, Paid, RepeatedSelection
from lehr.search import paying
from tests.search.paid_searches import paid_in
from tests.training.tiny import new_budget

ID = "ours alone"
WAYS: tuple[Paid, ...] = (RepeatedSelection(mean=3), RepeatedSelection(mean=3, shape=None), Composition(3))


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_the_whole_search_is_charged_at_once_and_nothing_is_open(tmp_path: Path, price: Paid) -> None:
    paid, budget = paid_in(tmp_path, price), new_budget(tmp_path / "b")
    paying.reserve(budget, paid, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        runs = account.status().runs
    shared = paying.shared(budget, name="ours")
    assert all(run.is_settled for run in runs)
    assert sum(run.charged == paid.event for run in runs) == (0 if isinstance(price, Composition) else 1)
    assert shared.spent_epsilon >= 6
    paying.refuse_unreserved(budget, paid, name="ours", run_id=ID)


def test_the_trials_of_a_composition_are_paid_for_beside_the_one_that_wins(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path, Composition(3)), new_budget(tmp_path / "b")
    paying.reserve(budget, paid, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        charged = {run.run: run.charged for run in account.status().runs}
    assert charged["ours"] == paid.trial_event
    assert charged["ours, the other trials"] == Composition(2).event(paid.trial_event)


def test_of_trials_that_do_not_fit_it_is_said_how_many_would(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "b", epsilon=8.0)
    many = paid_in(tmp_path, Composition(3), privacy={"epsilon": 9.0})
    with pytest.raises(BudgetExceeded, match=r"of its 3 trials [12] would fit"):
        paying.reserve(budget, many, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        assert account.status().runs == ()


def test_where_not_even_one_trial_fits_that_is_said(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "b", epsilon=1.0)
    with pytest.raises(BudgetExceeded, match="not even a mean of one trial would fit"):
        paying.reserve(budget, paid_in(tmp_path), name="ours", run_id=ID)


def test_a_budget_that_counts_another_way_and_a_name_that_is_taken_are_refused(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), tmp_path / "b"
    Budget.create(budget, dataset="clinic", epsilon=100.0, delta=1e-3, adjacency=Adjacency.REPLACE_ONE).close()
    with pytest.raises(InvalidValue, match="adjacency must be that of the budget"):
        paying.reserve(budget, paid, name="ours", run_id=ID)
    other = new_budget(tmp_path / "other", epsilon=100.0)
    paying.reserve(other, paid, name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
        paying.reserve(other, paid, name="ours", run_id="another")


def test_a_budget_that_has_reserved_something_else_is_refused(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), new_budget(tmp_path / "b")
    paying.reserve(budget, paid, name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
        paying.refuse_unreserved(budget, paid_in(tmp_path, RepeatedSelection(mean=3)), name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
        paying.refuse_unreserved(budget, paid, name="another", run_id=ID)


def test_a_search_that_was_killed_while_it_reserved_does_the_rest_and_nobody_else_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid, budget = paid_in(tmp_path, Composition(3)), new_budget(tmp_path / "b")
    calls = []

    def killed(wrapped: Any) -> Any:
        def call(self: Budget, *given: Any, **named: Any) -> Any:
            calls.append(wrapped)
            if len(calls) in (2, 4, 5, 7, 8, 9):  # each time one statement farther
                raise KeyboardInterrupt
            return wrapped(self, *given, **named)

        return call

    for name in ("reserve", "settle"):
        monkeypatch.setattr(Budget, name, killed(getattr(Budget, name)))
    for _ in range(6):
        with pytest.raises(KeyboardInterrupt):
            paying.reserve(budget, paid, name="ours", run_id=ID)
        with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
            paying.reserve(budget, paid, name="ours", run_id="another")
    paying.reserve(budget, paid, name="ours", run_id=ID)
    paying.refuse_unreserved(budget, paid, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        runs = account.status().runs
    assert [(run.is_settled, run.charged == run.reserved) for run in runs] == [(True, True)] * 2


def test_a_search_whose_reservation_was_given_back_does_not_go_on(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), new_budget(tmp_path / "b")
    with Budget.open(budget) as account:
        account.reserve(paid.event, run="ours", run_id=ID)
        account.settle("ours", used=NOTHING)
    for goes_on in (paying.reserve, paying.refuse_unreserved):
        with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
            goes_on(budget, paid, name="ours", run_id=ID)


def test_the_data_set_of_a_budget_is_named(tmp_path: Path) -> None:
    assert paying.dataset_of(new_budget(tmp_path / "b")) == "tiny images"
    assert paying.dataset_of(None) is None
