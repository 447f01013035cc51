from __future__ import annotations

import math
from pathlib import Path

import pytest

from lehr.accounting import bound
from lehr.compat.opacus.spending import BLOCK, Allowed, Spending
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.events import Gaussian, PoissonSampled, Repeated, counted
from lehr.ledger import Ledger

STEP, OTHER = PoissonSampled(0.1, Gaussian(1.0)), PoissonSampled(0.1, Gaussian(2.0))


def test_every_step_is_counted() -> None:
    spending = Spending()
    for event in (STEP, OTHER, STEP):
        spending.charge(event)
    assert counted(spending.charged()) == {STEP: 2, OTHER: 1}


def test_a_folder_knows_every_step_when_charge_returns(tmp_path: Path) -> None:
    spending = Spending(folder=tmp_path / "new", delta=1e-5)
    spending.charge(STEP)
    (path,) = (tmp_path / "new").glob("*.ledger")
    ledger = Ledger.open(path)
    assert counted(ledger.charged())[STEP] >= 1
    ledger.close()


def test_another_process_counts_what_was_reserved_and_adds_its_own(tmp_path: Path) -> None:
    first = Spending(folder=tmp_path, delta=1e-5)
    for _ in range(BLOCK + 1):
        first.charge(STEP)
    first.charge(OTHER)
    first.close()
    second = Spending(folder=tmp_path, delta=1e-5)
    assert counted(second.before) == {STEP: 2 * BLOCK, OTHER: BLOCK}
    second.charge(STEP)
    assert counted(second.charged())[STEP] == 2 * BLOCK + 1


def test_what_is_unproven_costs_infinitely_much() -> None:
    spending = Spending()
    spending.charge(STEP, unproven="shuffled")
    assert bound(spending.charged(), delta=1e-5).epsilon == math.inf


def test_a_folder_needs_a_delta(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="delta"):
        Spending(folder=tmp_path)


def test_no_more_steps_than_were_planned_and_no_others() -> None:
    allowed = Allowed(STEP, steps=2)
    with pytest.raises(InvalidValue, match="plan"):
        allowed.take(OTHER)
    allowed.take(STEP)
    allowed.take(STEP)
    with pytest.raises(BudgetExceeded, match="2 steps"):
        allowed.take(STEP)
    assert Repeated(STEP, allowed.used).count == 2
