"""A run in somebody else's loop has a plan, a ledger, a budget and a certificate as any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lehr.clipping.automatic import AutomaticClip
from lehr.compat.private_run import LoopsOptimizer, PrivateRun, Terms
from lehr.errors import BudgetExceeded, InvalidValue, StoreError
from lehr.ledger import Ledger
from lehr.planning.budget import Budget
from lehr.release import release
from lehr.reports.run_reading import State, read_run

HELD = 20


def terms(folder: Path, **changed: Any) -> Terms:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "records": HELD, "expected_batch_size": 5}
    return Terms(**{**settings, "directory": folder / "run", **changed})


def a_run(folder: Path, *, steps: int = 6, resumed_at: int | None = None, **changed: Any) -> PrivateRun:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateRun(
        terms(folder, **changed),
        model=model,
        optimizer=optimizer,
        door="a loop 1.0",
        steps=steps,
        num_held=HELD,
        resumed_at=resumed_at,
    )


def take(run: PrivateRun, count: int) -> None:
    """Steps on made-up records."""
    with run.steps.engine:
        for _ in range(count):
            for part in run.steps.parts():
                run.model(torch.ones(len(part.places), 2)).sum(1).mean().backward()
                run.steps.add()
            run.steps.release()


def a_closed_run(folder: Path, **changed: Any) -> None:
    run = a_run(folder, **changed)
    take(run, 1)
    run.close()


def test_the_ledger_has_every_step_before_it_is_released(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    take(run, 2)
    run.close()
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.count("steps") == 2


def test_the_plan_ends_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path, steps=3)
    take(run, 3)
    assert run.is_over
    with pytest.raises(InvalidValue, match="where the plan ends"):
        take(run, 1)
    run.close()


def test_epsilon_is_that_of_the_plan_at_its_end_and_less_before(tmp_path: Path) -> None:
    run = a_run(tmp_path, noise_multiplier=None, epsilon=5.0)
    take(run, 3)
    halfway = run.epsilon_spent
    take(run, 3)
    assert 0 < halfway < run.epsilon_spent <= 5.0
    assert run.epsilon_spent == pytest.approx(run.proven_claim.epsilon)
    run.close()


def test_a_finished_run_is_read_certified_and_released_as_any_other(tmp_path: Path) -> None:
    run = a_run(tmp_path, settings_chosen_on="fixed")
    take(run, 6)
    certificate = run.end(run.model.state_dict())
    run.close()
    record = read_run(tmp_path / "run")
    assert record.state is State.COMPLETED
    assert record.certificate == certificate is not None
    assert record.config["training"]["door"] == "a loop 1.0"
    assert record.config["method"]["update"] == {"custom": "torch.optim.sgd.SGD"}
    release(tmp_path / "run", tmp_path / "released")
    assert not (tmp_path / "run" / "private" / "key").exists()


def test_a_run_that_stopped_early_promises_what_its_plan_allowed(tmp_path: Path) -> None:
    run = a_run(tmp_path, settings_chosen_on="fixed")
    take(run, 2)
    certificate = run.end(run.model.state_dict())
    assert certificate is not None
    assert certificate.epsilon == pytest.approx(run.proven_claim.epsilon, rel=1e-3)
    run.close()


def test_without_a_statement_there_is_no_certificate(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert run.end(run.model.state_dict()) is None
    run.close()


def test_going_on_draws_anew_and_charges_steps_that_are_taken_again(tmp_path: Path) -> None:
    first = a_run(tmp_path)
    take(first, 4)
    drawn = [first.steps.draws.places(step).tolist() for step in range(2, 12)]
    first.close()
    second = a_run(tmp_path, resumed_at=2)
    assert second.last_step == 4
    assert [second.steps.draws.places(step).tolist() for step in range(2, 12)] != drawn
    take(second, 2)
    assert second.is_over
    second.close()


@pytest.mark.parametrize("changed", [{"noise_multiplier": 2.0}, {"clip_norm": 2.0}, {"clipping": AutomaticClip(1.0)}])
def test_a_run_goes_on_as_it_began_or_not_at_all(tmp_path: Path, changed: dict[str, Any]) -> None:
    a_closed_run(tmp_path)
    with pytest.raises(InvalidValue, match="resumed as it began"):
        a_run(tmp_path, resumed_at=1, **changed)


def test_a_folder_that_is_used_is_not_begun_in_again(tmp_path: Path) -> None:
    a_closed_run(tmp_path)
    with pytest.raises(StoreError, match="already"):
        a_run(tmp_path)


def test_a_budget_pays_for_the_plan_and_gets_back_what_was_not_used(tmp_path: Path) -> None:
    where = tmp_path / "budget"
    Budget.create(where, dataset="people", epsilon=20.0, delta=1e-3).close()
    run = a_run(tmp_path, budget=where, name="first", settings_chosen_on="fixed")
    take(run, 2)
    certificate = run.end(run.model.state_dict())
    run.close()
    assert certificate is not None
    assert certificate.budget is not None
    with Budget.open(where) as budget:
        [paid] = budget.status().runs
    assert paid.is_settled
    with pytest.raises(BudgetExceeded):
        a_run(tmp_path / "second", budget=where, name="second", noise_multiplier=0.1)
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 1.0},
        {"noise_multiplier": None},
        {"records": 0},
        {"delta": float("nan")},
        {"settings_chosen_on": "a guess"},
    ],
)
def test_terms_that_cannot_be_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        terms(tmp_path, **changed).statements()


def test_the_optimizer_of_another_loop_is_described_and_never_built() -> None:
    described = LoopsOptimizer(described="torch.optim.adam.Adam")
    assert described.to_json() == {"custom": "torch.optim.adam.Adam"}
    with pytest.raises(InvalidValue, match="update"):
        described.build([])


def test_a_run_has_a_folder_of_its_own_where_none_is_named() -> None:
    assert Terms(epsilon=1.0, delta=1e-5, records=100, name="a try").where.parts[0] == "runs"


def test_a_run_that_is_refused_before_its_first_step_leaves_nothing(tmp_path: Path) -> None:
    where = tmp_path / "budget"
    Budget.create(where, dataset="people", epsilon=20.0, delta=1e-3).close()
    run = a_run(tmp_path, budget=where, name="refused")
    run.close()
    assert not (tmp_path / "run").exists()
    with Budget.open(where) as account:
        assert account.status().epsilon_spent == 0
    a_run(tmp_path, budget=where, name="better").close()


def test_a_run_that_took_a_step_or_went_on_or_was_ended_is_kept(tmp_path: Path) -> None:
    a_closed_run(tmp_path)
    a_run(tmp_path, resumed_at=1).close()
    ended = a_run(tmp_path, directory=tmp_path / "ended")
    ended.end(ended.model.state_dict())
    ended.close()
    assert (tmp_path / "run" / "config.json").exists()
    assert (tmp_path / "ended" / "config.json").exists()
