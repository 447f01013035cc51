"""The budget of a data set: what it admits, what it refuses, what it gives back."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr import accounting
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
    counted,
    to_json,
    together,
)
from lehr.accounting.filter import RenyiFilter
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError, UnsupportedEvent
from lehr.files.append_only import AppendOnlyFile, _link
from lehr.planning.budget import BUDGET_FORMAT, Budget, RunStatus

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
ADD = Adjacency.ADD_OR_REMOVE_ONE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mnist.budget"


@pytest.fixture
def budget(path: Path) -> Iterator[Budget]:
    with create(path) as budget:
        yield budget


def create(path: Path, *, epsilon: float = 3.0, adjacency: Adjacency = ADD) -> Budget:
    return Budget.create(path, dataset="MNIST", epsilon=epsilon, delta=1e-5, adjacency=adjacency)


# What is admitted.


def test_the_filter_is_fixed_when_the_budget_is_made(path: Path, budget: Budget) -> None:
    chosen = RenyiFilter.choose(epsilon=3.0, delta=1e-5, adjacency=ADD)
    budget.reserve(Repeated(STEP, 10), run="a")
    with Budget.open(path) as again:
        assert again.status().orders == budget.status().orders == chosen.orders


def test_a_budget_made_for_a_plan_admits_more_of_it(tmp_path: Path, budget: Budget) -> None:
    how: dict[str, Any] = {"dataset": "MNIST", "epsilon": 3.0, "delta": 1e-5}
    with Budget.create(tmp_path / "tuned", **how, expecting=Repeated(STEP, 5000)) as tuned:
        assert tuned.largest_steps(STEP) > budget.largest_steps(STEP)


def test_the_largest_number_of_steps_fits_and_one_more_does_not(path: Path, budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    assert 3000 < most < 7245
    with pytest.raises(BudgetExceeded):
        budget.reserve(Repeated(STEP, most + 1), run="one too many")
    assert budget.status().runs == ()
    with Budget.open(path) as other:  # two openings share one limit
        budget.reserve(Repeated(STEP, most - 5), run="a")
        with pytest.raises(BudgetExceeded):
            other.reserve(Repeated(STEP, 6), run="b")
        other.reserve(Repeated(STEP, 5), run="b")
        assert budget.status() == other.status()
    assert budget.largest_steps(STEP) == 0
    assert 2.99 < budget.status().epsilon_spent <= 3.0


def test_what_is_spent_is_never_a_sum_of_epsilons(budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    budget.reserve(Repeated(STEP, most // 10), run="first")
    one = budget.status().epsilon_spent
    budget.reserve(Repeated(STEP, most // 10), run="second")
    assert one < budget.status().epsilon_spent < 1.8 * one
    for number in range(8):
        budget.reserve(Repeated(STEP, most // 10), run=str(number))
    assert budget.largest_steps(STEP) == most - most // 10 * 10  # as for one large run


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8), fractions=st.lists(st.floats(0, 1), min_size=8))
def test_the_filter_admits_all_that_was_used_whatever_is_reserved_and_given_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fractions: list[float]
) -> None:
    used: list[Event] = []
    with create(tmp_path_factory.mktemp("budget") / "file") as budget:
        chosen = RenyiFilter(epsilon=3.0, delta=1e-5, adjacency=ADD, orders=budget.status().orders)
        for number, (size, fraction) in enumerate(zip(sizes, fractions, strict=False)):
            try:
                budget.reserve(Repeated(STEP, size), run=str(number))
            except BudgetExceeded:
                assert not chosen.admits(together(*used, Repeated(STEP, size)))
                continue
            used.append(Repeated(STEP, max(1, int(size * fraction))))
            budget.spend(str(number), used[-1])
            budget.settle(str(number))
        assert chosen.admits(together(*used))
        assert budget.status().epsilon_spent == chosen.epsilon_spent(together(*used))


def test_replace_one_and_selection_have_their_budgets_too(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(RepeatAndSelect(Repeated(STEP, 100), mean=3.0), run="search")
    with create(tmp_path / "replace", adjacency=Adjacency.REPLACE_ONE) as replacing:
        replacing.reserve(SampledWithoutReplacement(60_000, 512, Gaussian(4.0)), run="a")
        assert replacing.status().adjacency is Adjacency.REPLACE_ONE
        with pytest.raises(UnsupportedEvent):
            replacing.reserve(Repeated(STEP, 3), run="b")
    with pytest.raises(UnsupportedEvent):
        budget.reserve(SampledWithoutReplacement(60_000, 512, Gaussian(1.23)), run="a")


# What is refused.


def test_a_refusal_names_the_run_the_cost_the_limit_and_what_would_fit(budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 2000), run="first")
    left = budget.largest_steps(STEP)
    expected = rf"run 'second' .*'MNIST' is ε = 3 at δ = 1e-05.* from ε = 1\.\d+ to [45]\.\d+; {left} × Poisson"
    with pytest.raises(BudgetExceeded, match=expected):
        budget.reserve(Repeated(STEP, 9000), run="second")


@pytest.mark.parametrize("event", [NonPrivate("a histogram"), Gaussian(0.0), PoissonSampled(0.01, Gaussian(0.0))])
def test_what_has_no_noise_never_fits(budget: Budget, event: Event) -> None:
    with pytest.raises(BudgetExceeded):
        budget.reserve(event, run="a")
    assert budget.largest_steps(event) == 0


def test_a_run_reserves_once(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(InvalidValue, match="run"):
        budget.reserve(STEP, run="a")
    budget.settle("a", used=NOTHING)
    with pytest.raises(InvalidValue, match="run"):
        budget.reserve(STEP, run="a")


def test_several_runs_are_charged_in_full_or_not_at_all(budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    with pytest.raises(BudgetExceeded):
        budget.charge({"a": Repeated(STEP, most), "b": STEP}, run_id="ours")
    with pytest.raises(InvalidValue, match="event"):
        budget.charge({"a": STEP, "b": NOTHING}, run_id="ours")
    assert budget.status().runs == ()
    budget.charge({"a": Repeated(STEP, most - 1), "b": STEP}, run_id="ours")
    assert budget.largest_steps(STEP) == 0
    assert all(run.is_settled and run.charged == run.reserved for run in budget.status().runs)
    with pytest.raises(InvalidValue, match="run"):
        budget.charge({"c": STEP, "b": STEP}, run_id="ours")


@pytest.mark.parametrize("event", [NOTHING, Composed((Composed(()),)), "a step", None])
def test_nothing_and_what_is_no_event_cannot_be_reserved(budget: Budget, event: Event) -> None:
    with pytest.raises(InvalidValue, match="event"):
        budget.reserve(event, run="a")
    with pytest.raises(InvalidValue, match="step_event"):
        budget.largest_steps(event)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dataset": ""},
        {"dataset": "one\ntwo"},
        {"dataset": "\x1b[2Jone"},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": math.inf},
        {"delta": 1.0},
        {"delta": "small"},
        {"adjacency": "replace-one"},
    ],
)
def test_bad_arguments_are_refused_by_name_and_make_no_file(path: Path, wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {"dataset": "d", "epsilon": 3.0, "delta": 1e-5}
    with pytest.raises(InvalidValue) as error:
        Budget.create(path, **(right | wrong))
    assert [error.value.name] == [*wrong]
    assert not path.exists()


# Spending and giving back.


def test_a_reservation_is_charged_in_full_until_it_is_settled(path: Path, budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    budget.reserve(Repeated(STEP, 2000), run="a")
    reserved = budget.status().epsilon_spent
    budget.spend("a", Repeated(STEP, 300))
    with Budget.open(path) as after_a_crash:
        assert after_a_crash.status().epsilon_spent == reserved
        assert after_a_crash.reservation("a") == Repeated(STEP, 2000)
        assert counted(after_a_crash.status().runs[0].used) == {STEP: 300}
    budget.spend("a", Repeated(STEP, 200))
    assert counted(budget.settle("a")) == {STEP: 1500}
    assert budget.largest_steps(STEP) == most - 500
    settled = RunStatus(run="a", reserved=Repeated(STEP, 2000), used=Repeated(STEP, 500), is_settled=True)
    assert budget.status().runs == (settled,)


def test_a_run_spends_its_reservation_and_no_more(budget: Budget) -> None:
    budget.reserve(Composed((Repeated(STEP, 10), Gaussian(9.0))), run="a")
    budget.spend("a", Composed((Repeated(STEP, 10), Gaussian(9.0))))
    for more in (STEP, Gaussian(9.0), Gaussian(8.0)):
        with pytest.raises(BudgetExceeded):
            budget.spend("a", more)
    assert budget.settle("a") == NOTHING


def test_a_settled_run_spends_no_more(budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 10), run="a")
    budget.spend("a", STEP)
    budget.settle("a")
    with pytest.raises(InvalidValue, match="run"):
        budget.spend("a", STEP)
    with pytest.raises(InvalidValue, match="run"):
        budget.settle("a")


@pytest.mark.parametrize("spent, used", [(20, 19), (20, 101), (0, None)])
def test_what_was_used_is_between_what_was_recorded_and_what_was_reserved(
    budget: Budget, spent: int, used: int | None
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    if spent:
        budget.spend("a", Repeated(STEP, spent))
    with pytest.raises(InvalidValue, match="used"):
        budget.settle("a", used=None if used is None else Repeated(STEP, used))
    assert not budget.status().runs[0].is_settled


def a_ledger(path: Path, *, run: str = "a", steps: int = 100, adjacency: Adjacency = ADD) -> Ledger:
    return Ledger.create(path, run=run, plan_event=Repeated(STEP, steps), delta=1e-5, adjacency=adjacency)


@pytest.mark.parametrize("is_finished", [False, True], ids=["open", "finished before a crash"])
def test_a_ledger_says_what_a_run_used_and_takes_nothing_more(
    tmp_path: Path, budget: Budget, is_finished: bool
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger") as ledger, Ledger.open(tmp_path / "ledger") as other:
        ledger.record(Repeated(STEP, 30))
        if is_finished:
            ledger.finish()
        assert counted(budget.settle("a", ledger=ledger)) == {STEP: 70}
        for book in (ledger, other):
            with pytest.raises(BudgetExceeded):
                book.record(STEP)
        assert counted(other.charged()) == {STEP: 30}
    assert counted(budget.status().runs[0].charged) == {STEP: 30}


@pytest.mark.parametrize("other", [{"run": "b"}, {"steps": 99}, {"adjacency": Adjacency.REPLACE_ONE}])
def test_the_ledger_of_something_else_settles_nothing_and_stays_open(
    tmp_path: Path, budget: Budget, other: dict[str, Any]
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger", **other) as ledger:
        with pytest.raises(InvalidValue, match="ledger"):
            budget.settle("a", ledger=ledger)
        ledger.record(STEP)
    assert not budget.status().runs[0].is_settled


def test_a_ledger_with_less_than_was_spent_or_beside_a_stated_use_settles_nothing(
    tmp_path: Path, budget: Budget
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    budget.spend("a", Repeated(STEP, 20))
    with a_ledger(tmp_path / "ledger") as ledger:
        ledger.record(Repeated(STEP, 19))
        for used in (NOTHING, None):
            with pytest.raises(InvalidValue, match="used"):
                budget.settle("a", used=used, ledger=ledger)
    assert counted(budget.status().runs[0].charged) == {STEP: 100}


# One plan for the whole budget.


def test_the_whole_budget_admits_what_the_tight_accountant_admits(budget: Budget) -> None:
    event = Repeated(STEP, (budget.largest_steps(STEP) + 7245) // 2)  # more than the filter admits
    with pytest.raises(BudgetExceeded, match=r"would cost ε = 3\.\d+"):
        budget.reserve(Repeated(STEP, 7500), run="a", whole_budget=True)
    assert budget.status().mode == "filter"
    budget.reserve(event, run="a", whole_budget=True)
    status = budget.status()
    tight = accounting.bound(event, delta=1e-5, adjacency=ADD).epsilon
    assert (status.mode, status.epsilon_spent) == ("single plan", tight)
    assert tight <= 3.0


def test_nothing_follows_a_plan_that_took_the_whole_budget_and_it_gives_nothing_back(
    path: Path, budget: Budget
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a", whole_budget=True)
    spent = budget.status().epsilon_spent
    budget.spend("a", STEP)
    assert budget.settle("a") == NOTHING
    with Budget.open(path) as again:
        assert again.status().epsilon_spent == spent
        assert counted(again.status().runs[0].charged) == {STEP: 100}
        assert again.largest_steps(STEP) == 0
        for whole_budget in (False, True):
            with pytest.raises(BudgetExceeded, match="run 'a' took the whole"):
                again.reserve(STEP, run="b", whole_budget=whole_budget)


def test_only_an_unused_budget_is_given_whole(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(BudgetExceeded):
        budget.reserve(STEP, run="b", whole_budget=True)
    budget.settle("a", used=NOTHING)
    budget.reserve(STEP, run="b")
    budget.spend("b", STEP)
    budget.settle("b")
    with pytest.raises(BudgetExceeded):
        budget.reserve(STEP, run="c", whole_budget=True)


def test_a_budget_of_which_nothing_was_used_can_still_be_given_whole(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    budget.settle("a", used=NOTHING)
    budget.reserve(STEP, run="b", whole_budget=True)
    assert budget.status().mode == "single plan"


# The file.


def test_an_existing_budget_is_never_written_over(path: Path, budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(StoreError):
        create(path, epsilon=100.0)
    assert len(budget.status().runs) == 1


def test_a_ledger_is_no_budget_and_a_budget_no_ledger(tmp_path: Path, path: Path, budget: Budget) -> None:
    budget.close()
    a_ledger(tmp_path / "ledger").close()
    before = path.read_bytes(), (tmp_path / "ledger").read_bytes()
    with pytest.raises(ForeignFile):
        Budget.open(tmp_path / "ledger")
    with pytest.raises(ForeignFile):
        Ledger.open(path)
    assert (path.read_bytes(), (tmp_path / "ledger").read_bytes()) == before


Body = dict[str, object]


def reserved(run: str, steps: int, whole_budget_epsilon: object = None) -> tuple[str, Body]:
    event = to_json(Repeated(STEP, steps) if steps else NOTHING)
    return "reserved", {"run": run, "event": event, "whole_budget_epsilon": whole_budget_epsilon}


def spent(run: str, steps: int) -> tuple[str, Body]:
    return "spent", {"run": run, "event": to_json(Repeated(STEP, steps))}


def settled(run: str, steps: int) -> tuple[str, Body]:
    return "settled", {"run": run, "used": to_json(Repeated(STEP, steps))}


DAMAGE: dict[str, list[tuple[str, Body]]] = {
    "an unknown event": [("reserved", {"run": "b", "event": {"kind": "x"}, "whole_budget_epsilon": None})],
    "no number": [reserved("b", 1, "much")],
    "spent by nobody": [spent("nobody", 1)],
    "settled by nobody": [settled("nobody", 1)],
    "an unknown kind": [("refunded", {"run": "a"})],
    "no body": [("reserved", {})],
    "a name of two lines": [reserved("b\nc", 1)],
    "nothing reserved": [reserved("b", 0)],
    "more than the whole budget": [settled("a", 10), reserved("b", 1, 3.1)],
    "a second reservation of a run": [reserved("a", 1)],
    "spent beyond the reservation": [spent("a", 91)],
    "spent beyond the reservation in parts": [spent("a", 90), spent("a", 1)],
    "settled below what was spent": [settled("a", 9)],
    "settled above the reservation": [settled("a", 101)],
    "settled twice": [settled("a", 10), settled("a", 10)],
    "spent after settling": [settled("a", 10), spent("a", 1)],
    "the whole of a budget in use": [reserved("b", 100, 2.0)],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_could_not_be_written_is_damage_when_read(path: Path, name: str) -> None:
    with create(path) as budget:
        budget.reserve(Repeated(STEP, 100), run="a")
        budget.spend("a", Repeated(STEP, 10))
    with AppendOnlyFile.open(path, BUDGET_FORMAT) as file:
        for kind, body in DAMAGE[name]:
            file.append(kind, body)
    before = path.read_bytes()
    with pytest.raises(DamagedFile, match=f"row {3 + len(DAMAGE[name])}"):
        Budget.open(path)
    assert path.read_bytes() == before


def test_a_reservation_after_the_whole_budget_is_damage_when_read(path: Path) -> None:
    with create(path) as budget:
        budget.reserve(STEP, run="a", whole_budget=True)
    with AppendOnlyFile.open(path, BUDGET_FORMAT) as file:
        file.append(*reserved("b", 1))
    with pytest.raises(DamagedFile, match="row 3"):
        Budget.open(path)


def test_a_row_nested_beyond_the_stack_is_damage(path: Path) -> None:
    with create(path) as budget:
        first = budget.head.partition(":")[2]
    body = '{"run":' + "[" * 100_000 + "]" * 100_000 + "}"
    row = (2, "now", "reserved", body, _link(first, 2, "now", "reserved", body))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("INSERT INTO entry (seq, at, kind, body, chain) VALUES (?, ?, ?, ?, ?)", row)
        connection.commit()
    with pytest.raises(DamagedFile, match="row 2"):
        Budget.open(path)


@pytest.mark.parametrize(
    "wrong", [{"orders": 5}, {"orders": []}, {"orders": [0.5]}, {"epsilon": -1}, {"adjacency": "x"}]
)
def test_an_impossible_first_row_is_damage(path: Path, wrong: Body) -> None:
    right = {"dataset": "d", "epsilon": 3, "delta": 1e-5, "adjacency": "replace-one", "orders": [5.0]}
    AppendOnlyFile.create(path, BUDGET_FORMAT, kind="opened", body=right | wrong).close()
    with pytest.raises(DamagedFile, match="row 1"):
        Budget.open(path)


def test_an_old_copy_is_recognised_by_its_head(path: Path, budget: Budget) -> None:
    budget.close()
    old = path.read_bytes()
    with Budget.open(path) as again:
        again.reserve(STEP, run="a")
        head = again.head
    Budget.open(path, continuing=head).close()
    path.write_bytes(old)
    with pytest.raises(DamagedFile, match="does not continue"):
        Budget.open(path, continuing=head)
