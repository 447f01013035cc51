"""Several processes on one file together get what one process would get: nothing overspent, nothing lost."""

from __future__ import annotations

from pathlib import Path

from lehr.accounting.events import NOTHING, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.planning.budget import Budget
from tests.privacy.spending import (
    BLOCK,
    STEP,
    Spenders,
    new_budget,
    new_ledger,
    record_until_refused,
    reserve_until_refused,
)

PROCESSES = [str(number) for number in range(8)]


def test_eight_processes_reserve_exactly_what_one_could(tmp_path: Path, script: Spenders) -> None:
    path = tmp_path / "budget"
    with new_budget(path) as budget:
        most = budget.largest_steps(STEP)
    script.start(reserve_until_refused, path, processes=PROCESSES)
    said = sum(line["reserved"] for line in script.said())
    with Budget.open(path) as budget:
        runs = budget.status().runs
        reserved = sum(counted(run.reserved)[STEP] for run in runs)
        assert reserved == said == most
        assert budget.largest_steps(STEP) == 0
        assert budget.status().epsilon_spent <= 3.0
    assert len({run.run.split(".")[0] for run in runs}) > 1, "one process was done before another began"


def test_eight_processes_record_exactly_what_the_plan_has(tmp_path: Path, script: Spenders) -> None:
    path = tmp_path / "ledger"
    new_ledger(path, steps=3000).close()
    script.start(record_until_refused, path, processes=PROCESSES)
    said = sum(line["recorded"] for line in script.said())
    with Ledger.open(path) as ledger:
        assert counted(ledger.charged()) == {STEP: 3000}
        assert ledger.remaining() == NOTHING
    assert said == 3000


def test_a_run_settled_while_processes_record_is_charged_all_that_they_may_use(
    tmp_path: Path, script: Spenders
) -> None:
    path, plan = tmp_path / "ledger", Repeated(STEP, 4000)
    with new_budget(tmp_path / "budget") as budget, new_ledger(path, steps=plan.count) as ledger:
        budget.reserve(plan, run=ledger.run)
        script.start(record_until_refused, path, processes=PROCESSES)
        before = script.heard(50)
        given_back = budget.settle(ledger.run, ledger=ledger)
        said = sum(line["recorded"] for line in [*before, *script.said()])
        [run] = budget.status().runs
        assert counted(run.charged) == counted(ledger.charged()) == {STEP: said}
        assert counted(given_back) == {STEP: plan.count - said}
    assert 50 * BLOCK <= said < plan.count
