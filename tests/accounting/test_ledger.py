"""The ledger of a run: what is recorded stays, and no more than the plan has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    NonPrivate,
    PoissonSampled,
    RenyiLimit,
    Repeated,
    counted,
    to_json,
)
from lehr.accounting.ledger import LEDGER_FORMAT, Ledger
from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError
from lehr.files.append_only import AppendOnlyFile

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
TEST = Gaussian(4.0)
PLAN = Composed((Repeated(STEP, 100), Repeated(TEST, 3)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ledger"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with begun(path) as ledger:
        yield ledger


def begun(path: Path) -> Ledger:
    return Ledger.create(path, run="a run", plan_event=PLAN, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def test_a_new_ledger_has_charged_nothing_and_the_whole_plan_remains(ledger: Ledger) -> None:
    assert ledger.charged() == NOTHING
    assert counted(ledger.remaining()) == counted(PLAN)
    assert ledger.entries() == ()


def test_what_was_recorded_is_there_after_reopening(path: Path, ledger: Ledger) -> None:
    ledger.record(STEP, note="the first step")
    ledger.record(Repeated(STEP, 41))
    ledger.record(TEST)
    ledger.close()
    with Ledger.open(path) as again:
        assert counted(again.charged()) == {STEP: 42, TEST: 1}
        assert counted(again.remaining()) == {STEP: 58, TEST: 2}
        assert (again.run, again.plan_event, again.delta) == ("a run", PLAN, 1e-5)
        assert again.adjacency is Adjacency.ADD_OR_REMOVE_ONE
        assert [entry.note for entry in again.entries()] == ["the first step", "", ""]


def test_another_opening_of_the_same_run_sees_and_shares_the_plan(path: Path, ledger: Ledger) -> None:
    with Ledger.open(path) as other:
        ledger.record(Repeated(STEP, 60))
        assert counted(other.charged()) == {STEP: 60}
        other.record(Repeated(STEP, 40))
    with pytest.raises(BudgetExceeded):
        ledger.record(STEP)


def test_the_last_step_of_the_plan_is_taken_and_one_more_is_refused(ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 99))
    ledger.record(STEP)
    head = ledger.head
    with pytest.raises(BudgetExceeded, match=r"run 'a run' has 3 × Gaussian.* left, and this asks for Poisson"):
        ledger.record(STEP)
    assert ledger.head == head


@pytest.mark.parametrize(
    "event", [Repeated(STEP, 101), Gaussian(1.23), Composed((Repeated(STEP, 50), Repeated(TEST, 4)))]
)
def test_a_block_that_is_not_in_the_plan_is_refused_whole(ledger: Ledger, event: Event) -> None:
    with pytest.raises(BudgetExceeded):
        ledger.record(event)
    assert ledger.charged() == NOTHING


def test_acceptance_never_changes_the_charge(path: Path, ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 10))
    ledger.accepted(7, note="annealed")
    ledger.accepted(0)
    assert counted(ledger.charged()) == {STEP: 10}
    assert ledger.accepted_count() == 7
    with Ledger.open(path) as again:
        assert again.accepted_count() == 7
        assert counted(again.remaining()) == {STEP: 90, TEST: 3}


@pytest.mark.parametrize("count", [-1, 1.5, True, "3", math.nan])
def test_a_bad_count_is_refused(ledger: Ledger, count: int) -> None:
    with pytest.raises(InvalidValue, match="count must be a whole number >= 0"):
        ledger.accepted(count)


@pytest.mark.parametrize("recorded, noted, count", [(0, 0, 1), (1, 0, 10**6), (10, 7, 4)])
def test_no_more_steps_are_accepted_than_were_recorded(ledger: Ledger, recorded: int, noted: int, count: int) -> None:
    if recorded:
        ledger.record(Repeated(STEP, recorded))
    ledger.accepted(noted)
    with pytest.raises(InvalidValue, match=f"count must be at most {recorded - noted}, .*; given: {count}"):
        ledger.accepted(count)
    assert ledger.accepted_count() == noted
    ledger.accepted(recorded - noted)
    assert ledger.accepted_count() == recorded


def test_a_finished_ledger_takes_nothing_more_from_anyone(path: Path, ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 10))
    with Ledger.open(path) as other:
        assert not other.is_finished()
        ledger.finish()
        assert other.is_finished()
        for book in (ledger, other):
            with pytest.raises(BudgetExceeded, match="run 'a run' is finished"):
                book.record(STEP)
            with pytest.raises(BudgetExceeded, match="run 'a run' is finished"):
                book.accepted(1)
        assert counted(other.charged()) == {STEP: 10}
    ledger.close()
    with Ledger.open(path) as again, pytest.raises(BudgetExceeded, match="is finished"):
        again.record(STEP)


def test_finishing_twice_adds_one_line(ledger: Ledger) -> None:
    ledger.finish()
    head = ledger.head
    ledger.finish()
    assert ledger.head == head
    assert [entry.finishes for entry in ledger.entries()] == [True]


def test_the_ledger_asked_for_is_not_refused(ledger: Ledger) -> None:
    same_plan = Composed((Repeated(TEST, 2), TEST, Repeated(STEP, 100)))
    ledger.refuse_other()
    ledger.refuse_other(run="a run", plan_event=same_plan, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def test_another_run_s_ledger_is_refused_by_name(ledger: Ledger) -> None:
    with pytest.raises(InvalidValue, match="ledger must be that of the run 'b'; given: 'a run'"):
        ledger.refuse_other(run="b")
    with pytest.raises(InvalidValue, match=r"ledger must be that of the plan 99 × Poisson.*; given: '100 × Poisson"):
        ledger.refuse_other(plan_event=Repeated(STEP, 99))
    with pytest.raises(InvalidValue, match="ledger must be for replace-one; given: 'add-or-remove-one'"):
        ledger.refuse_other(adjacency=Adjacency.REPLACE_ONE)


@pytest.mark.parametrize("event", ["a step", None, to_json(STEP)])
def test_what_is_no_event_is_refused(ledger: Ledger, event: Event) -> None:
    with pytest.raises(InvalidValue, match="event must be an event"):
        ledger.record(event)


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"run": " "}, "run"),
        ({"run": "first\nsecond"}, "run"),
        ({"run": "\x1b[2Jfirst"}, "run"),
        ({"plan_event": "steps"}, "plan_event"),
        ({"delta": 1.0}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"adjacency": "replace-one"}, "adjacency"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_make_no_file(path: Path, wrong: dict[str, object], name: str) -> None:
    right: dict[str, object] = {"run": "r", "plan_event": PLAN, "delta": 1e-5, "adjacency": Adjacency.REPLACE_ONE}
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        Ledger.create(path, **(right | wrong))  # type: ignore[arg-type]  # the point of the test
    assert not path.exists()


def test_an_existing_ledger_is_never_written_over(path: Path, ledger: Ledger) -> None:
    ledger.record(STEP)
    with pytest.raises(StoreError, match="exists already"):
        begun(path)
    assert ledger.charged() == STEP


def test_an_old_copy_is_told_by_its_head(path: Path, ledger: Ledger) -> None:
    ledger.close()
    old = path.read_bytes()
    with Ledger.open(path) as again:
        again.record(Repeated(STEP, 90))
        head = again.head
    path.write_bytes(old)
    with pytest.raises(DamagedFile, match="does not continue"):
        Ledger.open(path, continuing=head)


@pytest.mark.parametrize(
    "kind, body",
    [
        ("charged", {"event": {"kind": "unheard-of"}, "note": ""}),
        ("charged", {"note": ""}),
        ("accepted", {"count": -5, "note": ""}),
        ("refunded", {"event": to_json(STEP), "note": ""}),
        ("charged", {"event": to_json(Repeated(STEP, 101)), "note": ""}),
        ("charged", {"event": to_json(Gaussian(1.0)), "note": ""}),
        ("accepted", {"count": 1, "note": ""}),
    ],
)
def test_rows_that_make_no_sense_are_damage(path: Path, kind: str, body: dict[str, object]) -> None:
    begun(path).close()
    with AppendOnlyFile.open(path, LEDGER_FORMAT) as file:
        file.append(kind, body)
    before = path.read_bytes()
    with pytest.raises(DamagedFile, match="row 2"):
        Ledger.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "kind, body",
    [
        ("charged", {"event": to_json(STEP), "note": ""}),
        ("accepted", {"count": 0, "note": ""}),
        ("finished", {}),
    ],
)
def test_rows_after_the_end_are_damage(path: Path, kind: str, body: dict[str, object]) -> None:
    with begun(path) as ledger:
        ledger.finish()
    with AppendOnlyFile.open(path, LEDGER_FORMAT) as file:
        file.append(kind, body)
    with pytest.raises(DamagedFile, match=r"row 3.*finished"):
        Ledger.open(path)


def test_an_opening_row_that_makes_no_sense_is_damage(path: Path) -> None:
    AppendOnlyFile.create(path, LEDGER_FORMAT, kind="opened", body={"run": "r"}).close()
    with pytest.raises(DamagedFile, match="row 1"):
        Ledger.open(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    path.write_text("# notes\n" * 500)
    with pytest.raises(ForeignFile, match="no Lehr ledger"):
        Ledger.open(path)


def test_what_a_charge_pays_for_is_counted_over_all_charges(path: Path, ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 10), counts={"steps": 10, "scores": 2})
    ledger.record(Repeated(STEP, 5), counts={"steps": 5})
    ledger.record(STEP)
    ledger.accepted(3)
    with Ledger.open(path) as again:
        assert [again.count(name) for name in ("steps", "scores", "looks")] == [15, 2, 0]
        assert again.entries()[0].counts == {"steps": 10, "scores": 2}


@pytest.mark.parametrize("count", [-1, 1.5, True, "3", math.nan])
def test_a_charge_that_pays_for_no_whole_number_is_refused(ledger: Ledger, count: int) -> None:
    with pytest.raises(InvalidValue, match="steps must be a whole number >= 0"):
        ledger.record(STEP, counts={"steps": count})
    assert ledger.charged() == NOTHING


LIMIT = RenyiLimit(order=5.0, divergence=1.0)  # Gaussian noise of multiplier s has 2.5 / s² at this order


def limited(path: Path, *, beside: tuple[Event, ...] = ()) -> Ledger:
    plan = Composed((LIMIT, *beside)) if beside else LIMIT
    return Ledger.create(path, run="a run", plan_event=plan, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def test_under_a_limit_any_events_are_taken_while_their_divergences_fit(path: Path) -> None:
    with limited(path) as ledger:
        ledger.record(Gaussian(2.0))  # 0.625
        ledger.record(Gaussian(2.7))  # 0.343 more
        head = ledger.head
        with pytest.raises(BudgetExceeded, match=r"this asks for Gaussian\(noise_multiplier=6\)"):
            ledger.record(Gaussian(6.0))  # 0.069 more
        assert ledger.head == head
        ledger.record(Gaussian(10.0))
        assert ledger.charged() == Composed((Gaussian(2.0), Gaussian(2.7), Gaussian(10.0)))
    with Ledger.open(path) as again, pytest.raises(BudgetExceeded):
        again.record(Gaussian(10.0))


def test_under_a_limit_many_at_once_count_as_many(path: Path) -> None:
    with limited(path) as ledger:
        with pytest.raises(BudgetExceeded):
            ledger.record(Repeated(Gaussian(5.0), 11))
        ledger.record(Repeated(Gaussian(5.01), 10))


def test_what_has_no_noise_fits_under_no_limit(path: Path) -> None:
    with limited(path) as ledger:
        for event in (NonPrivate("raw"), Gaussian(0.0)):
            with pytest.raises(BudgetExceeded):
                ledger.record(event)


def test_what_was_planned_beside_a_limit_does_not_count_towards_it(path: Path) -> None:
    with limited(path, beside=(TEST,)) as ledger:
        ledger.record(TEST)  # 0.156, which was planned
        ledger.record(Gaussian(1.6))  # 0.977
        with pytest.raises(BudgetExceeded):
            ledger.record(TEST)  # a second one was not


@pytest.mark.parametrize("first, second", [(LIMIT, Gaussian(10.0)), (Gaussian(10.0), LIMIT)], ids=["limit", "event"])
def test_a_limit_that_is_charged_as_such_leaves_nothing(path: Path, first: Event, second: Event) -> None:
    with limited(path) as ledger:
        ledger.record(first)
        with pytest.raises(BudgetExceeded):
            ledger.record(second)
        assert ledger.charged() == first


def test_a_plan_without_a_limit_takes_no_limit(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded):
        ledger.record(LIMIT)


def test_a_file_in_which_more_was_charged_than_the_limit_admits_is_damaged(path: Path) -> None:
    limited(path).close()
    row = {"event": to_json(Gaussian(1.0)), "note": "", "counts": {}}
    with AppendOnlyFile.open(path, LEDGER_FORMAT) as file, file.transaction() as transaction:
        transaction.append("charged", row)
    with pytest.raises(DamagedFile):
        Ledger.open(path)
