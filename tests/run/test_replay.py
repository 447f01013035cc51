"""Which steps are free and which are charged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Gaussian,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    Repeated,
    counted,
    together,
)
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, DamagedFile
from lehr.planning.plan import Plan
from lehr.run.replay import MOST_CHARGES, Attempt, RunPlan, StepCharger, choose_attempt, environment
from lehr.schedules import LinearDecay

STEP = PoissonSampled(0.01, Gaussian(1.0))
SCORE = Gaussian(20.0)
FIRST = Attempt(number=0, first_step=0, steps_before=0, scores_before=0, environment={})


def plan(steps: int, **changed: Any) -> Plan:
    said: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch_size": 1, "records": 100, "delta": 1e-5}
    return Plan(steps=steps, **{**said, **changed})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempts.jsonl"


def ledger_for(folder: Path, run_plan: RunPlan) -> Ledger:
    return Ledger.create(
        folder / "ledger.db",
        run="test",
        plan_event=run_plan.event,
        delta=1e-5,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
    )


@settings(max_examples=30)
@given(steps=st.integers(1, 300), every=st.none() | st.integers(1, 50), private=st.booleans())
def test_one_attempt_charges_the_plan(
    tmp_path_factory: pytest.TempPathFactory, steps: int, every: int | None, private: bool
) -> None:
    run_plan = RunPlan(plan=plan(steps), score_event=SCORE if private else NOTHING, evaluate_every=every)
    with ledger_for(tmp_path_factory.mktemp("run"), run_plan) as ledger:
        charges = StepCharger(run_plan, FIRST, ledger=ledger)
        scored = 0
        for step in range(charges.end_step):
            charges.charge(step)
            scored += charges.is_scored(step)
        assert charges.end_step == steps
        assert scored == run_plan.scores
        assert counted(ledger.charged()) == counted(run_plan.event)
        assert counted(charges.released_after(steps - 1)) == counted(run_plan.event)
        assert len(ledger.entries()) <= MOST_CHARGES


def test_ledger_rejects_more_than_the_plan(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(5))
    with ledger_for(tmp_path, run_plan) as ledger:
        charges = StepCharger(replace(run_plan, plan=plan(6)), FIRST, ledger=ledger)
        charges.charge(4)
        with pytest.raises(BudgetExceeded):
            charges.charge(5)


@settings(max_examples=30)
@given(taken=st.integers(1, 30), kept=st.integers(0, 30), every=st.integers(1, 7))
def test_second_attempt_pays_and_ends_earlier(
    tmp_path_factory: pytest.TempPathFactory, taken: int, kept: int, every: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    kept = min(kept, taken)
    run_plan = RunPlan(plan=plan(30), score_event=SCORE, evaluate_every=every)
    with ledger_for(folder, run_plan) as ledger:
        first = choose_attempt(
            folder / "attempts", first_step=0, of_checkpoint=0, ledger=ledger, environment={"a": "b"}
        )
        charges = StepCharger(run_plan, first, ledger=ledger)
        for step in range(taken):
            charges.charge(step)
        second = choose_attempt(folder / "attempts", first_step=kept, of_checkpoint=0, ledger=ledger, environment=None)
        charges = StepCharger(run_plan, second, ledger=ledger)
        scores = 0
        for step in range(kept, charges.end_step):
            charges.charge(step)
            scores += charges.is_scored(step)
        assert second.number != first.number
        assert charges.end_step == kept + 30 - taken
        assert counted(ledger.charged())[STEP] == 30
        assert counted(ledger.charged()).get(SCORE, 0) <= run_plan.scores
        assert second.scores_before + scores == counted(ledger.charged()).get(SCORE, 0)


def test_attempt_continues_only_if_nothing_changed(path: Path, tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(5))
    with ledger_for(tmp_path, run_plan) as ledger:

        def attempt(of_checkpoint: int, environment: dict[str, str] | None) -> int:
            return choose_attempt(
                path,
                first_step=0,
                of_checkpoint=of_checkpoint,
                ledger=ledger,
                environment=environment,
            ).number

        ledger.record(STEP)  # from here on something may have been drawn
        first = attempt(0, {"torch": "1"})
        assert attempt(first, {"torch": "1"}) == first
        second = attempt(first, {"torch": "2"})
        third = attempt(first, {"torch": "2"})  # the checkpoint is still one of the attempt before
        assert attempt(third, {"torch": "2"}) == third
        fourth = attempt(third, None)
        fifth = attempt(fourth, None)
        assert len({first, second, third, fourth, fifth}) == 5
    assert path.stat().st_mode & 0o077 == 0


def test_first_attempt_without_a_charge_continues(path: Path, tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(5))
    with ledger_for(tmp_path, run_plan) as ledger:
        for _ in range(2):
            found = choose_attempt(path, first_step=0, of_checkpoint=None, ledger=ledger, environment={"a": "b"})
            assert found.number == 0


def test_damaged_attempts(path: Path, tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(5))
    path.write_text('{"number": -1, "first_step": 0, "steps_before": 0, "scores_before": 0, "environment": {}}\n')
    with ledger_for(tmp_path, run_plan) as ledger, pytest.raises(DamagedFile, match="number"):
        choose_attempt(path, first_step=0, of_checkpoint=0, ledger=ledger, environment={})


def test_released_events_include_earlier_attempts(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(30), score_event=SCORE, evaluate_every=5)
    attempt = Attempt(number=1, first_step=4, steps_before=9, scores_before=1, environment={})
    with ledger_for(tmp_path, run_plan) as ledger:
        ledger.record(together(Repeated(STEP, 9), SCORE), counts={"steps": 9, "scores": 1})
        released = StepCharger(run_plan, attempt, ledger=ledger).released_after(9)
    assert counted(released) == {STEP: 9 + 6, SCORE: 1 + 2}


def test_environment() -> None:
    found = environment(torch.device("cpu"), physical_batch=8)
    assert found is not None
    assert {"lehr", "torch", "threads", "physical_batch", "vector instructions", "machine"} <= found.keys()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert environment(torch.device("cpu"), physical_batch=8) != found
    finally:
        torch.set_num_threads(threads)


def test_environment_of_a_gpu() -> None:
    assert environment(torch.device("cuda")) is None


DECAYING = LinearDecay(steps=30, first=2.0, last=1.0)


@settings(max_examples=12)
@given(taken=st.integers(1, 30), kept=st.integers(0, 30))
def test_second_attempt_under_a_schedule(tmp_path_factory: pytest.TempPathFactory, taken: int, kept: int) -> None:
    folder, kept = tmp_path_factory.mktemp("run"), min(kept, taken)
    run_plan = RunPlan(plan=plan(30, noise_schedule=DECAYING, asked=PureDP(0.01)))
    with ledger_for(folder, run_plan) as ledger:
        done: list[int] = []
        for first, count, last in ((0, 0, taken), (kept, taken, 30)):
            attempt = Attempt(number=count, first_step=first, steps_before=count, scores_before=0, environment={})
            charges = StepCharger(run_plan, attempt, ledger=ledger)
            for step in range(first, min(last, charges.end_step)):
                charges.charge(step)
                done.append(charges.paying_step(step))
            events = together(*(run_plan.plan.events(step, step + 1) for step in done))
            assert counted(ledger.charged()) == counted(events)
        assert done == list(range(30))
        assert counted(ledger.charged()) == counted(run_plan.event)


def test_setup_event_is_part_of_the_plan() -> None:
    run_plan = RunPlan(plan=plan(3), setup_event=Gaussian(9.0), score_event=SCORE, evaluate_every=2)
    assert counted(run_plan.event) == {Gaussian(9.0): 1, STEP: 3, SCORE: 2}


LIMIT = RenyiLimit(order=5.0, divergence=1.0)  # Gaussian noise of multiplier s has 2.5 / s² at this order


def costs() -> list[Gaussian]:
    """Steps of ever less noise, of which the limit admits the first two."""
    return [Gaussian(3.0), Gaussian(2.5), Gaussian(2.3), Gaussian(2.2)]


def test_limit_charges_step_by_step(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(100, limit=LIMIT))
    with ledger_for(tmp_path, run_plan) as ledger:
        charges = StepCharger(run_plan, FIRST, ledger=ledger)
        steps = (0, 1, 2, 2)
        assert [*map(charges.charge, steps, costs())] == [True, True, False, False]
        assert [charges.covers(step) for step in range(3)] == [True, True, False]
        assert counted(ledger.charged()) == dict.fromkeys(costs()[:2], 1)
        assert ledger.count("steps") == 2
        assert [entry.note for entry in ledger.entries()] == ["step 0", "step 1"]


def test_limit_and_a_ledger_without_taken_steps(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(100, limit=LIMIT))
    with ledger_for(tmp_path, run_plan) as ledger:
        charges = StepCharger(run_plan, FIRST, ledger=ledger)
        with pytest.raises(DamagedFile, match="lacks the steps 0 to 1"):
            charges.charge(2, costs()[0])
        assert ledger.count("steps") == 0


def test_limit_and_released_events(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(100, limit=LIMIT))
    with ledger_for(tmp_path, run_plan) as ledger:
        charges = StepCharger(run_plan, FIRST, ledger=ledger)
        for step, event in enumerate(costs()[:2]):
            assert charges.charge(step, event)
        assert [charges.released_after(step) for step in (0, 1)] == [costs()[0], together(*costs()[:2])]


def test_limit_and_a_second_attempt(tmp_path: Path) -> None:
    run_plan = RunPlan(plan=plan(100, limit=LIMIT))
    with ledger_for(tmp_path, run_plan) as ledger:
        first = StepCharger(run_plan, FIRST, ledger=ledger)
        for step in range(2):
            assert first.charge(step, Gaussian(3.0))
        again = Attempt(number=7, first_step=1, steps_before=2, scores_before=0, environment={})
        second = StepCharger(run_plan, again, ledger=ledger)
        assert not second.covers(1)
        assert second.charge(1, Gaussian(4.0))
        assert not second.charge(2, Gaussian(2.0))
        assert second.released_after(1) == together(Repeated(Gaussian(3.0), 2), Gaussian(4.0))
        assert second.end_step == 99
