"""A method on tape does what it does, and a second run of it is given what the first released."""

from __future__ import annotations

import torch

from lehr.acceptance.always import Always
from lehr.games.recorded_slots import RecordedAcceptance, Tape, recorded, shown
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState
from lehr.methods.by_name import named
from lehr.methods.dpsgd import dpsgd
from lehr.rng import RunKey

KEY = RunKey(bytes(range(32)))
STATE: SlotState = {}


def released(tape: Tape, value: float, *, step: int = 0) -> ReleasedSum:
    noise = recorded(dpsgd(), tape).noise
    private = PrivateSum(values={"weight": torch.full((3,), value)}, sensitivity=0.1)
    return noise.release(private, noise_multiplier=2.0, randomness=KEY.at(step, 0), state=STATE)


def test_a_first_run_releases_what_it_would_without_a_tape() -> None:
    private = PrivateSum(values={"weight": torch.full((3,), 5.0)}, sensitivity=0.1)
    plain = dpsgd().noise.release(private, noise_multiplier=2.0, randomness=KEY.at(0, 0), state=STATE)
    assert torch.equal(released(Tape(), 5.0).values["weight"], plain.values["weight"])


def test_a_second_run_goes_on_with_what_the_first_released_and_keeps_its_own() -> None:
    first = Tape()
    one = released(first, 5.0)
    second = Tape(played=first)
    other = released(second, 7.0)
    assert torch.equal(one.values["weight"], other.values["weight"])
    own = second.sums[0]
    assert float(own.private.values["weight"][0]) == 7.0
    assert torch.allclose(own.released.values["weight"] - one.values["weight"], torch.full((3,), 2.0))
    assert first.noted == second.noted


def test_a_second_run_that_has_come_further_goes_on_by_itself() -> None:
    first = Tape()
    released(first, 5.0)
    second = Tape(played=first)
    assert not torch.equal(released(second, 7.0, step=1).values["weight"], first.sums[0].released.values["weight"])


def test_a_tape_is_not_changed_by_whoever_was_given_its_values() -> None:
    first = Tape()
    released(first, 5.0).values["weight"].zero_()
    assert bool(first.sums[0].released.values["weight"].any())


def test_answers_of_private_records_are_replayed_and_kept() -> None:
    first = Tape()
    assert first.hear_answer(0.5) == 0.5
    second = Tape(played=first)
    assert second.hear_answer(0.7) == 0.5
    assert second.answers[0].answer == 0.7


def test_a_method_that_always_accepts_keeps_the_type_that_the_loop_knows() -> None:
    assert isinstance(recorded(dpsgd(), Tape()).acceptance, Always)
    method = named("dpsur")
    wrapped = recorded(method, Tape()).acceptance
    assert isinstance(wrapped, RecordedAcceptance)
    assert wrapped.to_json() == method.acceptance.to_json()
    assert wrapped.energy == method.acceptance.energy


def test_values_are_shown_alike_only_where_they_are_alike_to_the_bit() -> None:
    value = torch.tensor([1.0, 2.0])
    nudged = torch.nextafter(value, torch.tensor(9.0))
    assert shown({"a": value}) == shown({"a": value.clone()})
    assert shown({"a": value}) != shown({"a": nudged})
    assert shown((0.1, None)) != shown((0.1 + 1e-17 + 2e-17, None))
    assert shown(float("nan")) == shown(float("nan"))
