"""The budget of a data set: what it admits, what it refuses, what it gives back."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mnist.budget"


@pytest.fixture
def budget(path: Path) -> Iterator[Budget]:
    with opened(path) as budget:
        yield budget


def opened(path: Path, *, epsilon: float = 3.0, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE) -> Budget:
    return Budget.create(path, dataset="MNIST", epsilon=epsilon, delta=1e-5, adjacency=adjacency)


def between_filter_and_tight(budget: Budget) -> Event:
    """A plan that the tight accountant admits and the filter does not."""
    return Repeated(STEP, (budget.largest_steps(STEP) + 7245) // 2)


# what is admitted


def test_the_filter_is_fixed_when_the_budget_is_made(path: Path, budget: Budget) -> None:
    chosen = RenyiFilter.choose(epsilon=3.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    budget.reserve(Repeated(STEP, 10), run="a")
    with Budget.open(path) as again:
        assert again.status().orders == budget.status().orders == chosen.orders


def test_a_budget_made_for_a_plan_admits_more_of_it(tmp_path: Path, budget: Budget) -> None:
    with Budget.create(
        tmp_path / "tuned", dataset="MNIST", epsilon=3.0, delta=1e-5, expecting=Repeated(STEP, 5000)
    ) as tuned:
        assert tuned.largest_steps(STEP) > budget.largest_steps(STEP)


def test_the_largest_number_of_steps_fits_and_one_more_does_not(budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    assert 3000 < most < 7245
    with pytest.raises(BudgetExceeded):
        budget.reserve(Repeated(STEP, most + 1), run="one too many")
    assert budget.status().runs == ()
    budget.reserve(Repeated(STEP, most), run="all")
    assert budget.largest_steps(STEP) == 0
    assert 2.99 < budget.status().epsilon_spent <= 3.0


def test_many_small_runs_are_admitted_as_one_large_run_is(budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    for number in range(10):
        budget.reserve(Repeated(STEP, most // 10), run=str(number))
    assert budget.largest_steps(STEP) == most - most // 10 * 10


def test_what_is_spent_is_never_a_sum_of_epsilons(budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 1000), run="a")
    one = budget.status().epsilon_spent
    budget.reserve(Repeated(STEP, 1000), run="b")
    assert one < budget.status().epsilon_spent < 1.8 * one


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=8), fractions=st.lists(st.floats(0, 1), min_size=8))
def test_whatever_is_reserved_used_and_given_back_the_filter_admits_all_that_was_used(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], fractions: list[float]
) -> None:
    used: list[Event] = []
    with opened(tmp_path_factory.mktemp("budget") / "file") as budget:
        chosen = RenyiFilter(
            epsilon=3.0, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE, orders=budget.status().orders
        )
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


# what is refused


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


def test_events_that_the_filter_cannot_take_are_refused_by_name(tmp_path: Path, budget: Budget) -> None:
    with pytest.raises(UnsupportedEvent, match="filter"):
        budget.reserve(SampledWithoutReplacement(60_000, 512, Gaussian(1.23)), run="a")
    with (
        opened(tmp_path / "replace", adjacency=Adjacency.REPLACE_ONE) as replacing,
        pytest.raises(UnsupportedEvent, match="filter"),
    ):
        replacing.reserve(Repeated(STEP, 3), run="a")


def test_replace_one_and_selection_have_their_budgets_too(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(RepeatAndSelect(Repeated(STEP, 100), mean=3.0), run="search")
    with opened(tmp_path / "replace", adjacency=Adjacency.REPLACE_ONE) as replacing:
        replacing.reserve(SampledWithoutReplacement(60_000, 512, Gaussian(4.0)), run="a")
        assert replacing.status().adjacency is Adjacency.REPLACE_ONE


def test_a_run_reserves_once(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(InvalidValue, match="run must be a name that this budget has not seen yet; given: 'a'"):
        budget.reserve(STEP, run="a")
    budget.settle("a", used=NOTHING)
    with pytest.raises(InvalidValue, match="run must be"):
        budget.reserve(STEP, run="a")


@pytest.mark.parametrize("event", [NOTHING, Composed((Composed(()),)), "a step", None])
def test_nothing_and_what_is_no_event_cannot_be_reserved(budget: Budget, event: Event) -> None:
    with pytest.raises(InvalidValue, match="event must be"):
        budget.reserve(event, run="a")
    with pytest.raises(InvalidValue, match="step_event must be"):
        budget.largest_steps(event)


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"dataset": ""}, "dataset"),
        ({"dataset": "one\ntwo"}, "dataset"),
        ({"dataset": "\x1b[2Jone"}, "dataset"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 1.0}, "delta"),
        ({"delta": "small"}, "delta"),
        ({"adjacency": "replace-one"}, "adjacency"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_make_no_file(path: Path, wrong: dict[str, object], name: str) -> None:
    right: dict[str, object] = {"dataset": "d", "epsilon": 3.0, "delta": 1e-5}
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        Budget.create(path, **(right | wrong))  # type: ignore[arg-type]  # the point of the test
    assert not path.exists()


# spending and giving back


def test_a_reservation_is_charged_in_full_until_it_is_settled(path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 2000), run="a")
    reserved = budget.status().epsilon_spent
    budget.spend("a", Repeated(STEP, 500))
    assert budget.status().epsilon_spent == reserved
    with Budget.open(path) as after_a_crash:
        assert after_a_crash.status().epsilon_spent == reserved
        assert after_a_crash.reservation("a") == Repeated(STEP, 2000)
        assert counted(after_a_crash.status().runs[0].used) == {STEP: 500}


def test_settling_gives_back_what_was_not_used_and_no_more(budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    budget.reserve(Repeated(STEP, 2000), run="a")
    budget.spend("a", Repeated(STEP, 300))
    budget.spend("a", Repeated(STEP, 200))
    assert counted(budget.settle("a")) == {STEP: 1500}
    assert budget.largest_steps(STEP) == most - 500
    assert budget.status().runs == (
        RunStatus(run="a", reserved=Repeated(STEP, 2000), used=Repeated(STEP, 500), is_settled=True),
    )


def test_a_run_spends_its_reservation_and_no_more(budget: Budget) -> None:
    budget.reserve(Composed((Repeated(STEP, 10), Gaussian(9.0))), run="a")
    budget.spend("a", Composed((Repeated(STEP, 10), Gaussian(9.0))))
    for more in (STEP, Gaussian(9.0), Gaussian(8.0)):
        with pytest.raises(BudgetExceeded, match="run 'a' has nothing left"):
            budget.spend("a", more)
    assert budget.settle("a") == NOTHING


def test_a_settled_run_spends_no_more(budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 10), run="a")
    budget.spend("a", STEP)
    budget.settle("a")
    with pytest.raises(InvalidValue, match="not settled yet"):
        budget.spend("a", STEP)
    with pytest.raises(InvalidValue, match="not settled yet"):
        budget.settle("a")


def test_a_run_that_recorded_nothing_must_say_what_it_used(budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 10), run="a")
    with pytest.raises(InvalidValue, match="used must be stated"):
        budget.settle("a")
    assert counted(budget.settle("a", used=NOTHING)) == {STEP: 10}


def a_ledger(
    path: Path, *, run: str = "a", steps: int = 100, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
) -> Ledger:
    return Ledger.create(path, run=run, plan_event=Repeated(STEP, steps), delta=1e-5, adjacency=adjacency)


def test_a_ledger_can_say_what_a_run_used(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger") as ledger:
        ledger.record(Repeated(STEP, 30))
        assert counted(budget.settle("a", ledger=ledger)) == {STEP: 70}
    assert counted(budget.status().runs[0].charged) == {STEP: 30}


def test_nothing_is_recorded_in_a_ledger_after_its_run_is_settled(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger") as ledger, Ledger.open(tmp_path / "ledger") as other:
        ledger.record(Repeated(STEP, 10))
        budget.settle("a", ledger=ledger)
        for book in (ledger, other):
            with pytest.raises(BudgetExceeded, match="run 'a' is finished"):
                book.record(Repeated(STEP, 90))
        assert counted(other.charged()) == {STEP: 10}


def test_a_run_whose_ledger_was_finished_before_a_crash_can_be_settled(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger") as ledger:
        ledger.record(STEP)
        ledger.finish()
        assert counted(budget.settle("a", ledger=ledger)) == {STEP: 99}


@pytest.mark.parametrize(
    "run, steps, adjacency, allowed",
    [
        ("b", 100, Adjacency.ADD_OR_REMOVE_ONE, "that of the run 'a'"),
        ("a", 99, Adjacency.ADD_OR_REMOVE_ONE, "that of the plan 100"),
        ("a", 100, Adjacency.REPLACE_ONE, "for add-or-remove-one"),
    ],
)
def test_the_ledger_of_something_else_settles_nothing_and_stays_open(
    tmp_path: Path, budget: Budget, run: str, steps: int, adjacency: Adjacency, allowed: str
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger", run=run, steps=steps, adjacency=adjacency) as ledger:
        with pytest.raises(InvalidValue, match=f"ledger must be {allowed}"):
            budget.settle("a", ledger=ledger)
        ledger.record(STEP)
    assert not budget.status().runs[0].is_settled


def test_a_ledger_that_has_less_than_was_spent_settles_nothing(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    budget.spend("a", Repeated(STEP, 20))
    with a_ledger(tmp_path / "ledger") as ledger:
        ledger.record(Repeated(STEP, 19))
        with pytest.raises(InvalidValue, match="used must be at least what was recorded"):
            budget.settle("a", ledger=ledger)
    assert counted(budget.status().runs[0].charged) == {STEP: 100}


def test_a_ledger_and_a_stated_use_are_not_both_taken(tmp_path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    with a_ledger(tmp_path / "ledger") as ledger, pytest.raises(InvalidValue, match="used must be left out"):
        budget.settle("a", used=NOTHING, ledger=ledger)
    assert not budget.status().runs[0].is_settled


@pytest.mark.parametrize(
    "used, allowed",
    [(Repeated(STEP, 19), "at least what was recorded"), (Repeated(STEP, 101), "at most what was reserved")],
)
def test_what_was_used_is_between_what_was_recorded_and_what_was_reserved(
    budget: Budget, used: Event, allowed: str
) -> None:
    budget.reserve(Repeated(STEP, 100), run="a")
    budget.spend("a", Repeated(STEP, 20))
    with pytest.raises(InvalidValue, match=f"used must be {allowed}"):
        budget.settle("a", used=used)
    assert not budget.status().runs[0].is_settled


# one plan for the whole budget


def test_the_whole_budget_admits_what_the_tight_accountant_admits(budget: Budget) -> None:
    event = between_filter_and_tight(budget)
    budget.reserve(event, run="a", whole_budget=True)
    status = budget.status()
    tight = accounting.bound(event, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE).epsilon
    assert (status.mode, status.epsilon_spent) == ("single plan", tight)
    assert tight <= 3.0


def test_the_whole_budget_is_not_more_than_the_budget(budget: Budget) -> None:
    with pytest.raises(BudgetExceeded, match=r"run 'a' .* would cost ε = 3\.\d+"):
        budget.reserve(Repeated(STEP, 7500), run="a", whole_budget=True)
    assert budget.status().mode == "filter"


def test_nothing_follows_a_plan_that_took_the_whole_budget(budget: Budget) -> None:
    budget.reserve(STEP, run="a", whole_budget=True)
    assert budget.largest_steps(STEP) == 0
    for whole_budget in (False, True):
        with pytest.raises(BudgetExceeded, match=r"run 'b' is refused.*run 'a' took the whole of it"):
            budget.reserve(STEP, run="b", whole_budget=whole_budget)


def test_a_plan_that_took_the_whole_budget_gives_nothing_back(path: Path, budget: Budget) -> None:
    budget.reserve(Repeated(STEP, 100), run="a", whole_budget=True)
    spent = budget.status().epsilon_spent
    budget.spend("a", STEP)
    assert budget.settle("a") == NOTHING
    with Budget.open(path) as again:
        assert again.status().epsilon_spent == spent
        assert counted(again.status().runs[0].charged) == {STEP: 100}
        with pytest.raises(BudgetExceeded):
            again.reserve(STEP, run="b")


def test_a_budget_that_was_used_is_not_given_whole(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(BudgetExceeded, match=r"run 'b' .* asks for the whole budget"):
        budget.reserve(STEP, run="b", whole_budget=True)
    budget.spend("a", STEP)
    budget.settle("a")
    with pytest.raises(BudgetExceeded, match=r"run 'b' .* asks for the whole budget"):
        budget.reserve(STEP, run="b", whole_budget=True)


def test_a_budget_of_which_nothing_was_used_can_still_be_given_whole(budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    budget.settle("a", used=NOTHING)
    budget.reserve(STEP, run="b", whole_budget=True)
    assert budget.status().mode == "single plan"


# the file


def test_two_openings_share_one_limit(path: Path, budget: Budget) -> None:
    most = budget.largest_steps(STEP)
    with Budget.open(path) as other:
        budget.reserve(Repeated(STEP, most - 5), run="a")
        with pytest.raises(BudgetExceeded):
            other.reserve(Repeated(STEP, 6), run="b")
        other.reserve(Repeated(STEP, 5), run="b")
        assert budget.status() == other.status()


def test_an_existing_budget_is_never_written_over(path: Path, budget: Budget) -> None:
    budget.reserve(STEP, run="a")
    with pytest.raises(StoreError, match="exists already"):
        opened(path, epsilon=100.0)
    assert len(budget.status().runs) == 1


def test_a_ledger_is_no_budget_and_a_budget_no_ledger(tmp_path: Path, path: Path, budget: Budget) -> None:
    budget.close()
    ledger = tmp_path / "ledger"
    Ledger.create(ledger, run="a", plan_event=STEP, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE).close()
    before = path.read_bytes(), ledger.read_bytes()
    with pytest.raises(ForeignFile, match="no Lehr budget"):
        Budget.open(ledger)
    with pytest.raises(ForeignFile, match="no Lehr ledger"):
        Ledger.open(path)
    assert (path.read_bytes(), ledger.read_bytes()) == before


@pytest.mark.parametrize(
    "kind, body",
    [
        ("reserved", {"run": "a", "event": {"kind": "unheard-of"}, "whole_budget_epsilon": None}),
        ("reserved", {"run": "a", "event": to_json(STEP), "whole_budget_epsilon": "much"}),
        ("spent", {"run": "nobody", "event": to_json(STEP)}),
        ("settled", {"run": "nobody", "used": to_json(STEP)}),
        ("refunded", {"run": "a"}),
        ("reserved", {}),
        ("reserved", {"run": "a\nb", "event": to_json(STEP), "whole_budget_epsilon": None}),
        ("reserved", {"run": "a", "event": to_json(NOTHING), "whole_budget_epsilon": None}),
        ("reserved", {"run": "a", "event": to_json(STEP), "whole_budget_epsilon": 3.1}),
    ],
)
def test_rows_that_make_no_sense_are_damage(path: Path, kind: str, body: dict[str, object]) -> None:
    opened(path).close()
    with AppendOnlyFile.open(path, BUDGET_FORMAT) as file:
        file.append(kind, body)
    before = path.read_bytes()
    with pytest.raises(DamagedFile, match="row 2"):
        Budget.open(path)
    assert path.read_bytes() == before


def reserved(run: str, steps: int, whole_budget_epsilon: float | None = None) -> tuple[str, dict[str, object]]:
    event = to_json(Repeated(STEP, steps))
    return "reserved", {"run": run, "event": event, "whole_budget_epsilon": whole_budget_epsilon}


def spent(run: str, steps: int) -> tuple[str, dict[str, object]]:
    return "spent", {"run": run, "event": to_json(Repeated(STEP, steps))}


def settled(run: str, steps: int) -> tuple[str, dict[str, object]]:
    return "settled", {"run": run, "used": to_json(Repeated(STEP, steps))}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([reserved("a", 1)], id="a second reservation of a run"),
        pytest.param([spent("a", 91)], id="spent beyond the reservation"),
        pytest.param([spent("a", 90), spent("a", 1)], id="spent beyond the reservation in parts"),
        pytest.param([settled("a", 9)], id="settled below what was spent"),
        pytest.param([settled("a", 101)], id="settled above the reservation"),
        pytest.param([settled("a", 10), settled("a", 10)], id="settled twice"),
        pytest.param([settled("a", 10), spent("a", 1)], id="spent after settling"),
        pytest.param([reserved("b", 100, 2.0)], id="the whole of a budget in use"),
    ],
)
def test_what_could_not_be_written_is_damage_when_read(path: Path, rows: list[tuple[str, dict[str, object]]]) -> None:
    with opened(path) as budget:
        budget.reserve(Repeated(STEP, 100), run="a")
        budget.spend("a", Repeated(STEP, 10))
    with AppendOnlyFile.open(path, BUDGET_FORMAT) as file:
        for kind, body in rows:
            file.append(kind, body)
    before = path.read_bytes()
    with pytest.raises(DamagedFile, match=f"row {3 + len(rows)}"):
        Budget.open(path)
    assert path.read_bytes() == before


def test_a_reservation_after_the_whole_budget_is_damage_when_read(path: Path) -> None:
    with opened(path) as budget:
        budget.reserve(STEP, run="a", whole_budget=True)
    with AppendOnlyFile.open(path, BUDGET_FORMAT) as file:
        kind, body = reserved("b", 1)
        file.append(kind, body)
    with pytest.raises(DamagedFile, match="row 3"):
        Budget.open(path)


def test_a_row_nested_beyond_the_stack_is_damage(path: Path) -> None:
    with opened(path) as budget:
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
def test_an_opening_row_that_makes_no_sense_is_damage(path: Path, wrong: dict[str, object]) -> None:
    right = {"dataset": "d", "epsilon": 3, "delta": 1e-5, "adjacency": "replace-one", "orders": [5.0]}
    AppendOnlyFile.create(path, BUDGET_FORMAT, kind="opened", body=right | wrong).close()
    with pytest.raises(DamagedFile, match="row 1"):
        Budget.open(path)


def test_an_old_copy_is_told_by_its_head(path: Path, budget: Budget) -> None:
    budget.close()
    old = path.read_bytes()
    with Budget.open(path) as again:
        again.reserve(STEP, run="a")
        head = again.head
    Budget.open(path, continuing=head).close()
    path.write_bytes(old)
    with pytest.raises(DamagedFile, match="does not continue"):
        Budget.open(path, continuing=head)
