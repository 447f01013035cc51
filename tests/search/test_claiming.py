from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from lehr.search.claiming import FIXED, SECONDS_BETWEEN_SIGHTS, SECONDS_UNSEEN, Claim, Claims, counts
from lehr.search.storage import opened, url_for


@dataclass
class Clock:
    now: float = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    """A database, and folders of those who share it."""

    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.storage = opened(url_for(self.folder))
        self.study = optuna.create_study(storage=self.storage, study_name="s")
        self.study_id = self.storage.get_study_id_from_name("s")

    def claims(self, name: str = "here", **words: Any) -> Claims:
        return Claims(
            storage=self.storage,
            study_id=self.study_id,
            directory=self.folder / name,
            folder=name,
            clock=self.clock,
            **words,
        )

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials()

    def done(self, claim: Claim) -> None:
        self.storage.set_trial_state_values(claim.trial_id, TrialState.COMPLETE, [1.0])
        claim.let_go()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "database")


def claimed(claims: Claims, *, limit: int = 3) -> Claim:
    found = claims.next(limit=limit)
    assert found is not None
    return found


def test_each_trial_is_given_to_one_process_alone(machine: Machine) -> None:
    first, second = machine.claims(), machine.claims()
    assert [claimed(claims).number for claims in (first, second, first)] == [0, 1, 2]
    assert second.next(limit=3) is None


def test_a_trial_whose_process_died_is_found_again_before_a_new_one_is_made(machine: Machine) -> None:
    claims = machine.claims()
    first, second = claimed(claims), claimed(claims)
    os.close(second.held)  # what the system does with the locks of the dead
    again = claimed(claims)
    assert (again.number, again.trial_id) == (second.number, second.trial_id)
    assert len(machine.trials()) == 2
    machine.done(first)


def test_a_living_trial_of_another_folder_is_left_alone(machine: Machine) -> None:
    there = claimed(machine.claims("there"))
    os.close(there.held)  # even without its lock, which other machines cannot see
    machine.clock.now += SECONDS_UNSEEN - 1
    assert claimed(machine.claims("here")).number == 1


def test_a_trial_that_was_not_seen_for_long_is_begun_anew_elsewhere_with_its_settings(machine: Machine) -> None:
    there = claimed(machine.claims("there"))
    optuna.Trial(machine.study, there.trial_id).suggest_float("rate", 0, 1)
    [rate] = [trial.params["rate"] for trial in machine.trials()]
    machine.clock.now += SECONDS_UNSEEN
    anew = claimed(machine.claims("here"), limit=1)
    assert anew.number == 1
    before, now = machine.trials()
    assert before.state == TrialState.FAIL
    assert now.system_attrs[FIXED] == {"rate": rate}
    assert optuna.Trial(machine.study, anew.trial_id).suggest_float("rate", 0, 1) == rate
    assert machine.claims("third").next(limit=1) is None


def test_a_trial_that_says_it_is_alive_is_not_taken(machine: Machine) -> None:
    there = claimed(machine.claims("there"))
    for _ in range(4):
        machine.clock.now += SECONDS_UNSEEN / 2
        there.seen()
        assert machine.claims("here").next(limit=1) is None


def test_a_sign_of_life_is_written_now_and_then_only(machine: Machine) -> None:
    claim = claimed(machine.claims())
    first = machine.clock.now
    for seconds in (1, 1, SECONDS_BETWEEN_SIGHTS):
        before = machine.trials()[0].user_attrs["seen_at"]
        assert before == first
        machine.clock.now += seconds
        claim.seen()
    assert machine.trials()[0].user_attrs["seen_at"] == machine.clock.now


def test_a_sign_of_life_of_a_trial_that_was_given_up_does_no_harm(machine: Machine) -> None:
    claim = claimed(machine.claims())
    machine.storage.set_trial_state_values(claim.trial_id, TrialState.FAIL)
    machine.clock.now += SECONDS_BETWEEN_SIGHTS
    claim.seen()


def test_there_are_never_more_trials_than_were_asked_for(machine: Machine) -> None:
    claims = machine.claims()
    for _ in range(2):
        machine.done(claimed(claims, limit=2))
    assert claims.next(limit=2) is None
    assert claimed(claims, limit=3).number == 2


def test_one_that_two_machines_made_too_many_is_failed_by_the_later(machine: Machine) -> None:
    class Slow(Claims):
        """Another machine, which makes a trial between our look at the study and ours."""

        def _made(self, fixed: Any) -> Claim:
            Claims._made(machine.claims("faster"), fixed)
            return super()._made(fixed)

    slow = Slow(storage=machine.storage, study_id=machine.study_id, directory=machine.folder / "slow", folder="slow")
    assert slow.next(limit=1) is None
    assert [counts(trial) for trial in machine.trials()] == [True, False]


def test_an_abandoned_trial_that_is_one_too_many_is_failed(machine: Machine) -> None:
    claims = machine.claims()
    kept, surplus = claimed(claims), claimed(claims)
    os.close(surplus.held)
    assert claims.next(limit=1) is None
    assert [counts(trial) for trial in machine.trials()] == [True, False]
    machine.done(kept)


def test_of_a_list_each_is_tried_once_and_those_that_failed_again(machine: Machine) -> None:
    listed = [{"x": 1}, {"x": 2}]
    claims = machine.claims(combinations=listed)
    first, second = claimed(claims), claimed(claims)
    assert [trial.system_attrs[FIXED] for trial in machine.trials()] == listed
    assert claims.next(limit=3) is None
    machine.storage.set_trial_state_values(first.trial_id, TrialState.FAIL)
    third = claimed(claims)
    assert machine.trials()[third.number].system_attrs[FIXED] == {"x": 1}
    machine.done(second)
