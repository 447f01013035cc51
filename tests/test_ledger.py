"""The ledger of a run: what is recorded stays, and no more than the plan has."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.append_only import AppendOnlyFile
from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError
from lehr.events import (
    NOTHING,
    Adjacency,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    Repeated,
    counted,
    to_json,
)
from lehr.ledger import LEDGER_FORMAT, Ledger

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


@pytest.mark.parametrize("event", ["a step", None, to_json(STEP)])
def test_what_is_no_event_is_refused(ledger: Ledger, event: Event) -> None:
    with pytest.raises(InvalidValue, match="event must be an event"):
        ledger.record(event)


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"run": " "}, "run"),
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


def test_an_opening_row_that_makes_no_sense_is_damage(path: Path) -> None:
    AppendOnlyFile.create(path, LEDGER_FORMAT, kind="opened", body={"run": "r"}).close()
    with pytest.raises(DamagedFile, match="row 1"):
        Ledger.open(path)


def test_a_foreign_file_is_refused(path: Path) -> None:
    path.write_text("# notes\n" * 500)
    with pytest.raises(ForeignFile, match="no Lehr ledger"):
        Ledger.open(path)
