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
LIMIT = RenyiLimit(order=5.0, divergence=1.0)  # Gaussian noise of multiplier s has 2.5 / s² at this order


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ledger"


def create(path: Path, plan: Event = PLAN) -> Ledger:
    return Ledger.create(path, run="a run", plan_event=plan, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with create(path) as ledger:
        yield ledger


def assert_refused(ledger: Ledger, *events: Event) -> None:
    before = ledger.head
    for event in events:
        with pytest.raises(BudgetExceeded):
            ledger.record(event)
    assert ledger.head == before


def test_a_new_ledger_has_charged_nothing_and_the_whole_plan_remains(ledger: Ledger) -> None:
    assert ledger.charged() == NOTHING
    assert counted(ledger.remaining()) == counted(PLAN)
    assert ledger.entries() == ()


def test_charges_are_there_after_reopening(path: Path, ledger: Ledger) -> None:
    ledger.record(STEP, note="the first step", counts={"steps": 1})
    ledger.record(Repeated(STEP, 41), counts={"steps": 41, "scores": 2})
    ledger.record(TEST)
    ledger.close()
    with Ledger.open(path) as again:
        assert counted(again.charged()) == {STEP: 42, TEST: 1}
        assert counted(again.remaining()) == {STEP: 58, TEST: 2}
        assert (again.run, again.plan_event, again.delta) == ("a run", PLAN, 1e-5)
        assert again.adjacency is Adjacency.ADD_OR_REMOVE_ONE
        assert [entry.note for entry in again.entries()] == ["the first step", "", ""]
        assert [again.count(name) for name in ("steps", "scores", "looks")] == [42, 2, 0]


def test_two_openings_share_one_plan(path: Path, ledger: Ledger) -> None:
    with Ledger.open(path) as other:
        ledger.record(Repeated(STEP, 60))
        assert counted(other.charged()) == {STEP: 60}
        other.record(Repeated(STEP, 40))
    assert_refused(ledger, STEP)


def test_the_last_step_of_the_plan_is_taken_and_one_more_is_refused(ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 99))
    ledger.record(STEP)
    assert_refused(ledger, STEP)


def test_a_block_that_is_not_in_the_plan_is_refused_whole(ledger: Ledger) -> None:
    assert_refused(ledger, Repeated(STEP, 101), Gaussian(1.23), Composed((Repeated(STEP, 50), Repeated(TEST, 4))))
    assert_refused(ledger, LIMIT)
    assert ledger.charged() == NOTHING


def test_acceptance_never_changes_the_charge(path: Path, ledger: Ledger) -> None:
    ledger.record(Repeated(STEP, 10))
    ledger.accepted(7, note="annealed")
    ledger.accepted(0)
    assert counted(ledger.charged()) == {STEP: 10}
    with Ledger.open(path) as again:
        assert again.accepted_count() == 7
        assert counted(again.remaining()) == {STEP: 90, TEST: 3}


@pytest.mark.parametrize("recorded, noted, count", [(0, 0, 1), (1, 0, 10**6), (10, 7, 4)])
def test_no_more_steps_are_accepted_than_were_recorded(ledger: Ledger, recorded: int, noted: int, count: int) -> None:
    if recorded:
        ledger.record(Repeated(STEP, recorded))
    ledger.accepted(noted)
    with pytest.raises(InvalidValue, match=r"^count"):
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
            assert_refused(book, STEP)
            with pytest.raises(BudgetExceeded):
                book.accepted(1)
        assert counted(other.charged()) == {STEP: 10}
    head = ledger.head
    ledger.finish()
    assert ledger.head == head
    ledger.close()
    with Ledger.open(path) as again:
        assert_refused(again, STEP)
        assert [entry.finishes for entry in again.entries()] == [False, True]


def test_another_run_s_ledger_is_refused(ledger: Ledger) -> None:
    same_plan = Composed((Repeated(TEST, 2), TEST, Repeated(STEP, 100)))
    ledger.check_same()
    ledger.check_same(run="a run", plan_event=same_plan, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    for other in ({"run": "b"}, {"plan_event": Repeated(STEP, 99)}, {"adjacency": Adjacency.REPLACE_ONE}):
        with pytest.raises(InvalidValue, match=r"^ledger"):
            ledger.check_same(**other)


def test_events_and_counts_are_checked(ledger: Ledger) -> None:
    for event in ("a step", None, to_json(STEP)):
        with pytest.raises(InvalidValue, match=r"^event"):
            ledger.record(event)  # type: ignore[arg-type]
    for count in (-1, 1.5, True, "3", math.nan):
        with pytest.raises(InvalidValue, match=r"^steps"):
            ledger.record(STEP, counts={"steps": count})  # type: ignore[dict-item]
        with pytest.raises(InvalidValue, match=r"^count"):
            ledger.accepted(count)  # type: ignore[arg-type]
    assert ledger.charged() == NOTHING


@pytest.mark.parametrize(
    "name, wrong",
    [
        *(("run", run) for run in (" ", "first\nsecond", "\x1b[2Jfirst")),
        ("plan_event", "steps"),
        *(("delta", delta) for delta in (1.0, math.nan)),
        ("adjacency", "replace-one"),
    ],
)
def test_bad_arguments_are_refused_by_name_and_make_no_file(path: Path, name: str, wrong: object) -> None:
    right: dict[str, object] = {"run": "r", "plan_event": PLAN, "delta": 1e-5, "adjacency": Adjacency.REPLACE_ONE}
    with pytest.raises(InvalidValue, match=f"^{name}"):
        Ledger.create(path, **(right | {name: wrong}))  # type: ignore[arg-type]
    assert not path.exists()


def test_an_existing_ledger_is_never_replaced(path: Path, ledger: Ledger) -> None:
    ledger.record(STEP)
    with pytest.raises(StoreError):
        create(path)
    assert ledger.charged() == STEP


def test_an_old_copy_is_recognised_by_its_head(path: Path, ledger: Ledger) -> None:
    ledger.close()
    old = path.read_bytes()
    with Ledger.open(path) as again:
        again.record(Repeated(STEP, 90))
        head = again.head
    path.write_bytes(old)
    with pytest.raises(DamagedFile):
        Ledger.open(path, continuing=head)


@pytest.mark.parametrize(
    "kind, body",
    [
        ("charged", {"event": {"kind": "unheard-of"}, "note": ""}),
        ("charged", {"note": ""}),
        ("charged", {"event": to_json(STEP), "note": "", "counts": []}),
        ("charged", {"event": to_json(Repeated(STEP, 10**6)), "note": ""}),
        ("charged", {"event": to_json(Gaussian(1.0)), "note": ""}),
        ("accepted", {"count": -5, "note": ""}),
        ("accepted", {"count": 1, "note": ""}),
        ("refunded", {"event": to_json(STEP), "note": ""}),
    ],
)
@pytest.mark.parametrize("plan", [PLAN, LIMIT], ids=["plan", "limit"])
def test_rows_that_break_the_rules_are_damage(path: Path, plan: Event, kind: str, body: dict[str, object]) -> None:
    create(path, plan).close()
    with AppendOnlyFile.open(path, LEDGER_FORMAT) as file:
        file.append(kind, body)
    before = path.read_bytes()
    with pytest.raises(DamagedFile, match="row 2"):
        Ledger.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "kind, body",
    [("charged", {"event": to_json(STEP), "note": ""}), ("accepted", {"count": 0, "note": ""}), ("finished", {})],
)
def test_rows_after_the_end_are_damage(path: Path, kind: str, body: dict[str, object]) -> None:
    with create(path) as ledger:
        ledger.finish()
    with AppendOnlyFile.open(path, LEDGER_FORMAT) as file:
        file.append(kind, body)
    with pytest.raises(DamagedFile, match="row 3"):
        Ledger.open(path)


def test_an_opening_row_that_makes_no_sense_and_a_foreign_file_are_refused(path: Path) -> None:
    AppendOnlyFile.create(path, LEDGER_FORMAT, kind="opened", body={"run": "r"}).close()
    with pytest.raises(DamagedFile, match="row 1"):
        Ledger.open(path)
    path.write_text("# notes\n" * 500)
    with pytest.raises(ForeignFile):
        Ledger.open(path)


# Under a limit


def test_any_events_are_taken_while_their_divergences_fit(path: Path) -> None:
    with create(path, LIMIT) as ledger:
        assert_refused(ledger, NonPrivate("raw"), Gaussian(0.0), Repeated(Gaussian(5.0), 11))
        ledger.record(Gaussian(2.0))  # 0.625
        ledger.record(Gaussian(2.7))  # 0.343 more
        assert_refused(ledger, Gaussian(6.0))  # 0.069 more
        ledger.record(Gaussian(10.0))
        assert ledger.charged() == Composed((Gaussian(2.0), Gaussian(2.7), Gaussian(10.0)))
    with Ledger.open(path) as again:
        assert_refused(again, Gaussian(10.0))


def test_events_planned_next_to_a_limit_do_not_count_towards_it(path: Path) -> None:
    with create(path, Composed((LIMIT, TEST))) as ledger:
        ledger.record(TEST)  # 0.156, which was planned
        ledger.record(Gaussian(1.6))  # 0.977
        assert_refused(ledger, TEST)  # a second one was not


@pytest.mark.parametrize("first, second", [(LIMIT, Gaussian(10.0)), (Gaussian(10.0), LIMIT)], ids=["limit", "event"])
def test_a_limit_that_is_charged_as_such_leaves_nothing(path: Path, first: Event, second: Event) -> None:
    with create(path, LIMIT) as ledger:
        ledger.record(first)
        assert_refused(ledger, second)
        assert ledger.charged() == first
