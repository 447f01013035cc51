"""Several processes on one file together get what one process would get: nothing overspent, nothing lost."""

from __future__ import annotations

from pathlib import Path

from lehr.events import NOTHING, counted
from lehr.ledger import Ledger
from lehr.planning.budget import Budget
from tests.privacy.spending import (
    STEP,
    new_budget,
    new_ledger,
    record_until_refused,
    reserve_until_refused,
    spenders,
)

PROCESSES = [str(number) for number in range(8)]


def test_eight_processes_reserve_exactly_what_one_could(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    with new_budget(path) as budget:
        most = budget.largest_steps(STEP)
    with spenders() as script:
        script.start(reserve_until_refused, path, processes=PROCESSES)
        said = sum(line["reserved"] for line in script.said())
    with Budget.open(path) as budget:
        runs = budget.status().runs
        reserved = sum(counted(run.reserved)[STEP] for run in runs)
        assert reserved == said == most
        assert budget.largest_steps(STEP) == 0
        assert budget.status().epsilon_spent <= 3.0
    assert len({run.run.split(".")[0] for run in runs}) > 1, "one process was done before another began"


def test_eight_processes_record_exactly_what_the_plan_has(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    new_ledger(path, steps=3000).close()
    with spenders() as script:
        script.start(record_until_refused, path, processes=PROCESSES)
        said = sum(line["recorded"] for line in script.said())
    with Ledger.open(path) as ledger:
        assert counted(ledger.charged()) == {STEP: 3000}
        assert ledger.remaining() == NOTHING
    assert said == 3000
