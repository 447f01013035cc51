"""The private step, with and without a plan: the order of charge, draw, sum, noise and release. No model is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.accounting.events import NOTHING, BallsInBins, Event, Gaussian, NonPrivate, PoissonSampled, Repeated, counted
from lehr.errors import BudgetExceeded, InvalidValue, StoreError, UnsupportedEvent
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum
from lehr.optim.optimizers import sgd
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import IsotropicNoise, with_rounding
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateRun, PrivateStep, RunSpec, UnplannedRunSpec
from lehr.run.replay import OPEN_BLOCK, RunPlan, UnplannedCharger
from tests.run.test_folder import CONFIG
from tests.training.tiny import new_budget

KEY = RunKey(bytes(range(32)))
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=120, delta=1e-3)
HELD = 40


@dataclass
class State:
    """How far a loop is, and the state of its noise."""

    step: int = 0
    noise: ComponentState = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.noise = {}


def spec(path: Path, *, noise: Any = None, **changed: Any) -> RunSpec:
    plan = changed.pop("plan", PLAN)
    method = Method(name="dpsgd", clipping=FlatClip(1.0), noise=noise or IsotropicNoise(), update=sgd(0.5))
    given: dict[str, Any] = {
        "name": "first",
        "run_plan": RunPlan(plan=plan, setup_event=changed.pop("setup_event", NOTHING)),
        "mechanism": Mechanism.of(method, plan),
        "directory": path / "run",
        "config": {**CONFIG, "run": "first"},
        "fingerprint": lambda key: "mark",
        "physical_batch": 4,
        "epsilon_of": lambda event: float(sum(counted(event).values())),
        "key": KEY,
    }
    return RunSpec(**{**given, **changed})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[PrivateRun]:
    with PrivateRun.open(spec(tmp_path)) as opened:
        opened.begin(num_records=HELD)
        yield opened


def part(value: float = 0.0, *, sensitivity: float = 1.0) -> PrivateSum:
    return PrivateSum(values={"weight": torch.full((3,), value, dtype=torch.float64)}, sensitivity=sensitivity)


def fill(step: PrivateStep) -> PrivateStep:
    for batch in step.batches():
        step.add(part(float(batch.mask_P.sum())))
    return step


def charged(run: PrivateRun) -> int:
    assert run.folder is not None
    return sum(counted(run.folder.ledger.charged()).values())


def reserved(budget: Path) -> RunStatus:
    with Budget.open(budget) as account:
        [ours] = account.status().runs
        return ours


def test_release_is_the_sum_with_noise_once(run: PrivateRun) -> None:
    step = run.step(0)
    released = fill(step).release()
    noise = KEY.at(0, 0).normals("noise", part().values)["weight"]
    torch.testing.assert_close(released.values["weight"], len(step.indices) + with_rounding(1.0) * noise)


def test_steps_are_charged_in_blocks_before_the_draw(run: PrivateRun) -> None:
    state, before = State(), []
    for step in run.steps(state):
        before.append(charged(run))
        fill(step).release(state.noise)
        state.step += 1
    assert before == [3 * (step // 3 + 1) for step in range(120)]


@dataclass(frozen=True)
class Watching(IsotropicNoise):
    """Notes what is charged at the moment when noise is added."""

    seen: list[int]
    run: list[PrivateRun]

    def release(self, private: PrivateSum, **more: Any) -> ReleasedSum:
        self.seen.append(charged(self.run[0]))
        return super().release(private, **more)


def test_step_of_an_external_loop_is_charged_before_its_noise(tmp_path: Path) -> None:
    noise = Watching([], [])
    with PrivateRun.open(spec(tmp_path, noise=noise)) as run:
        noise.run.append(run)
        run.begin(num_records=HELD)
        ahead = [run.step(index).indices.tolist() for index in range(5)]
        assert charged(run) == 0
        for index in range(5):
            step = fill(run.step(index))
            assert step.indices.tolist() == ahead[index]
            step.release()
    assert noise.seen == [3, 3, 3, 6, 6]


def test_step_is_released_once(run: PrivateRun) -> None:
    step = fill(run.step(0))
    step.release()
    for again in (step.release, lambda: step.add(part())):
        with pytest.raises(InvalidValue):
            again()
    with pytest.raises(InvalidValue, match="released once, in order"):
        fill(run.step(0)).release()  # another object of the same step: the same noise on another sum
    assert charged(run) == 3
    fill(run.step(2)).release()
    with pytest.raises(InvalidValue, match="in order"):
        fill(run.step(1)).release()


def add_wrongly(step: PrivateStep, how: str) -> None:
    for index, batch in enumerate(step.batches()):
        if how == "nothing" or (how == "a batch missing" and not index):
            continue
        counts = int(batch.mask_P.sum()) - (how == "a record missing" and not index)
        step.add(part(sensitivity=2.0 if how == "another clip" and index else 1.0), num_records=counts)
        if how == "a batch twice" and not index:
            step.add(part(), num_records=counts)


@pytest.mark.parametrize("how", ["a batch missing", "nothing", "a record missing", "a batch twice"])
def test_incomplete_sum_is_not_released(run: PrivateRun, how: str) -> None:
    step = run.step(0)
    add_wrongly(step, how)
    with pytest.raises(InvalidValue, match="step must be"):
        step.release()
    assert charged(run) == 0


def test_parts_of_a_draw_need_one_sensitivity(run: PrivateRun) -> None:
    with pytest.raises(InvalidValue, match="sum must be clipped to"):
        add_wrongly(run.step(0), "another clip")


def test_end_of_the_plan(tmp_path: Path) -> None:
    with PrivateRun.open(spec(tmp_path, plan=replace(PLAN, steps=2))) as run:
        with pytest.raises(InvalidValue, match="begun before"):
            run.step(0)
        run.begin(num_records=HELD)
        with pytest.raises(InvalidValue, match="where the plan ends"):
            run.step(2)


def test_resume_without_an_environment_is_charged(tmp_path: Path) -> None:
    with PrivateRun.open(spec(tmp_path)) as run:
        first = run.begin(num_records=HELD)
        fill(run.step(0)).release()
    with PrivateRun.open(spec(tmp_path), resume=True) as run:
        assert run.begin(num_records=HELD, first_step=1) != first
        assert run.end_step == 118  # three steps were charged and one was kept
        fill(run.step(1)).release()
        assert charged(run) == 6


@pytest.mark.parametrize("environment, is_free", [({"machine": "this"}, True), ({"machine": "that"}, False)])
def test_replay_is_free_in_the_same_environment_only(
    tmp_path: Path, environment: dict[str, str], is_free: bool
) -> None:
    with PrivateRun.open(spec(tmp_path)) as run:
        attempt = run.begin(num_records=HELD, environment={"machine": "this"})
        first = fill(run.step(0)).release()
    with PrivateRun.open(spec(tmp_path), resume=True) as run:
        again = run.begin(num_records=HELD, checkpoint_attempt=attempt, environment=environment)
        second = fill(run.step(0)).release()
        assert (again == attempt) is is_free
        assert charged(run) == (3 if is_free else 6)
    assert torch.equal(first.values["weight"], second.values["weight"]) is is_free


def test_setup_is_charged_once_before_it_is_done(tmp_path: Path) -> None:
    setup, seen = Gaussian(9.0), []
    with PrivateRun.open(spec(tmp_path, setup_event=setup)) as run:
        run.begin(num_records=HELD, environment={})
        for _ in range(2):
            run.prepare(lambda randomness: seen.append(charged(run)), ())
        assert run.folder is not None
        assert counted(run.folder.ledger.charged()) == {setup: 1}
    assert seen == [1, 1]
    assert run.epsilon_spent == 1


def test_finish_returns_the_unused_part_once(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with PrivateRun.open(spec(tmp_path, budget=budget)) as run:
        run.begin(num_records=HELD)
        fill(run.step(0)).release()
        assert not reserved(budget).is_settled
        for _ in range(2):
            run.finish({"weight": torch.ones(3)}, accepted=1)
        assert run.folder is not None
        assert run.folder.ledger.is_finished()
        assert run.folder.ledger.accepted_count() == 1
        assert run.folder.files.model.exists()
        with pytest.raises(BudgetExceeded):
            fill(run.step(3)).release()
    assert counted(reserved(budget).charged) == {PLAN.step_event: 3}


EPOCH = BallsInBins(5, Gaussian(1.0))


def epochs(steps: int) -> Plan:
    """Epochs of five steps."""
    return replace(PLAN, bins=5, steps=steps)


def placed(run: PrivateRun, steps: range) -> list[list[int]]:
    """The records of these steps, which are released."""
    found = []
    for index in steps:
        step = run.step(index)
        found.append(sorted(step.indices.tolist()))
        fill(step).release()
    return found


def test_whole_epochs_are_charged_before_their_first_draw(tmp_path: Path) -> None:
    state, before = State(), []
    with PrivateRun.open(spec(tmp_path, plan=epochs(13))) as run:
        run.begin(num_records=HELD)
        for step in run.steps(state):
            assert run.folder is not None
            before.append(counted(run.folder.ledger.charged()))
            fill(step).release()
            state.step += 1
        run.finish(accepted=13)  # all steps can be accepted, although there are three events
    assert before == [{EPOCH: 1}] * 5 + [{EPOCH: 2}] * 5 + [{EPOCH: 3}] * 3


def test_every_record_is_in_one_step_of_an_epoch_and_a_replay_repeats_the_assignment(tmp_path: Path) -> None:
    with PrivateRun.open(spec(tmp_path, plan=epochs(15))) as run:
        attempt = run.begin(num_records=HELD, environment={"machine": "this"})
        first = placed(run, range(8))
    assert sorted(chain(*first[:5])) == list(range(HELD))
    with PrivateRun.open(spec(tmp_path, plan=epochs(15)), resume=True) as run:
        again = run.begin(num_records=HELD, first_step=7, checkpoint_attempt=attempt, environment={"machine": "this"})
        second = placed(run, range(7, 10))  # in another process, in the middle of an epoch
        assert again == attempt
        assert charged(run) == 2
    assert second[0] == first[7]
    assert sorted(chain(*first[5:7], *second)) == list(range(HELD))


def test_a_second_attempt_within_an_epoch_begins_an_epoch_of_its_own(tmp_path: Path) -> None:
    with PrivateRun.open(spec(tmp_path, plan=epochs(20))) as run:
        run.begin(num_records=HELD)
        first = placed(run, range(8))
    with PrivateRun.open(spec(tmp_path, plan=epochs(20)), resume=True) as run:
        run.begin(num_records=HELD, first_step=7)
        assert run.end_step == 17  # two epochs are left
        second = placed(run, range(7, 12))
        assert charged(run) == 3
        assert sorted(chain(*second)) == list(range(HELD))
        assert second[0] != first[7]
        placed(run, range(12, 17))
        assert charged(run) == 4


def test_an_epoch_that_was_begun_is_not_given_back(tmp_path: Path) -> None:
    plan = epochs(15)
    with PrivateRun.open(spec(tmp_path, plan=plan)) as run:
        run.begin(num_records=HELD)
        fill(run.step(0)).release()
        run.finish(accepted=1)
        assert run.folder is not None
        assert counted(run.folder.ledger.charged()) == {EPOCH: 1}
        assert counted(run.folder.ledger.remaining()) == {EPOCH: 2}
    assert counted(plan.events(0, 1)) == counted(plan.events(0, 5)) == {EPOCH: 1}
    assert counted(plan.events(1, 5)) == {}


def test_a_budget_of_several_runs_refuses_epochs_and_nothing_is_left(tmp_path: Path) -> None:
    """It is kept by a Rényi filter, and epochs have no Rényi bound."""
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(UnsupportedEvent, match="balls-in-bins"):
        PrivateRun.open(spec(tmp_path, plan=epochs(15), budget=budget))
    assert not (tmp_path / "run").exists()


def test_finished_run_charges_nothing(run: PrivateRun) -> None:
    run.finish()
    with pytest.raises(BudgetExceeded):
        fill(run.step(0)).release()


@pytest.mark.parametrize("steps", [0, 1])
def test_untouched_run_is_removed(tmp_path: Path, steps: int) -> None:
    budget = new_budget(tmp_path / "budget")
    with PrivateRun.open(spec(tmp_path, budget=budget, removes_untouched=True)) as run:
        run.begin(num_records=HELD)
        for index in range(steps):
            fill(run.step(index)).release()
    assert (tmp_path / "run").exists() is bool(steps)
    assert reserved(budget).is_settled is not bool(steps)


# Without a plan.

SAMPLING = PoissonSampling(expected_batch_size=8, records=40)


def opened(**changed: Any) -> PrivateRun:
    return PrivateRun.open(
        UnplannedRunSpec(**{"sampling": SAMPLING, "num_records": HELD, "physical_batch": 4, **changed})
    )


def event(noise_multiplier: float) -> PoissonSampled:
    return SAMPLING.event(Gaussian(noise_multiplier))


def test_run_without_a_plan_charges_releases_only() -> None:
    told: list[Event] = []
    charger = UnplannedCharger()
    run = opened(charger=charger, on_charge=told.append)
    for noise_multiplier in (1.0, 2.0, None, 1.0):
        step = run.draw()
        for batch in step.batches():
            step.add(part(), num_records=int(batch.mask_P.sum()))
        if noise_multiplier is not None:
            released = step.release(noise_multiplier=noise_multiplier)
            assert released.noise_multiplier == pytest.approx(noise_multiplier, rel=1e-5)
    assert counted(charger.charged()) == {event(1.0): 2, event(2.0): 1}
    assert told == [event(1.0), event(2.0), event(1.0)]


def test_batches_of_a_draw_without_a_plan() -> None:
    step = opened().draw()
    whole = step.indices.tolist()
    for size in (1, 3, 40):
        batches = step.batches(size)
        assert [index for batch in batches for index in batch.indices_P.tolist()] == whole
    rare = PoissonSampling(expected_batch_size=1e-9, records=40)
    [nobody] = opened(sampling=rare).draw().batches()
    assert (nobody.indices_P.tolist(), nobody.mask_P.tolist()) == ([0], [False])


def test_no_two_draws_share_randomness() -> None:
    run = opened(key=KEY)
    steps = [run.draw() for _ in range(20)]
    assert len({tuple(sorted(step.indices.tolist())) for step in steps}) == 20
    released = [fill(step).release(noise_multiplier=1.0).values["weight"] - len(step.indices) for step in steps]
    assert len({tuple(noise.tolist()) for noise in released}) == 20


def test_release_without_noise_is_not_private() -> None:
    charger = UnplannedCharger()
    step = opened(charger=charger).draw()
    released = fill(step).release(noise_multiplier=0.0)
    assert released.values["weight"].tolist() == [len(step.indices)] * 3
    assert [atom.event.noise_multiplier for atom in counted(charger.charged())] == [0]  # type: ignore[union-attr]
    for wrong in (-1.0, None, float("nan")):
        with pytest.raises(InvalidValue):
            fill(opened().draw()).release(noise_multiplier=wrong)


def test_own_draws_are_unproven() -> None:
    with pytest.raises(InvalidValue, match="indices"):
        opened().draw([1, 2])
    charger = UnplannedCharger()
    step = opened(charger=charger, unproven="batches were shuffled").draw([1, 2])
    step.add(part(), num_records=2)
    step.release(noise_multiplier=1.0)
    assert counted(charger.charged()) == {NonPrivate("batches were shuffled"): 1}


def test_planned_events_are_enforced() -> None:
    charger = UnplannedCharger()
    run = opened(charger=charger, reserved_steps=Repeated(event(1.0), 2))
    for _ in range(2):
        fill(run.draw()).release(noise_multiplier=1.0)
    with pytest.raises(InvalidValue, match="the planned event"):
        fill(run.draw()).release(noise_multiplier=2.0)
    with pytest.raises(BudgetExceeded):
        fill(run.draw()).release(noise_multiplier=1.0)
    assert counted(charger.charged()) == {event(1.0): 2}


def test_folder_keeps_charges_in_blocks(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="delta"):
        UnplannedCharger(folder=tmp_path / "steps")
    charger = UnplannedCharger(folder=tmp_path / "steps", delta=1e-3)
    run = opened(charger=charger)
    for noise_multiplier in (1.0, 1.0, 2.0):
        fill(run.draw()).release(noise_multiplier=noise_multiplier)
    run.finish()
    run.finish()
    with pytest.raises(InvalidValue, match="none after"):
        fill(run.draw()).release(noise_multiplier=1.0)
    expected: dict[Event, int] = {event(1.0): OPEN_BLOCK, event(2.0): OPEN_BLOCK}
    later = UnplannedCharger(folder=tmp_path / "steps", delta=1e-3)
    assert counted(later.before) == counted(later.charged()) == expected
    fill(opened(charger=later).draw()).release(noise_multiplier=1.0)
    assert counted(later.used) == {event(1.0): 1}
    assert len(list((tmp_path / "steps").glob("*.ledger"))) == 3


def test_budget_of_a_run_without_a_folder(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(InvalidValue, match="budget"):
        opened(budget=budget)
    run = opened(budget=budget, reserved_steps=Repeated(event(1.0), 5), name="first")
    assert counted(reserved(budget).charged) == {event(1.0): 5}
    fill(run.draw()).release(noise_multiplier=1.0)
    run.finish()
    run.finish()
    assert counted(reserved(budget).charged) == {event(1.0): 1}
    with pytest.raises((InvalidValue, StoreError, BudgetExceeded)):
        opened(budget=budget, reserved_steps=Repeated(event(1.0), 5), name="first")  # the name is taken
