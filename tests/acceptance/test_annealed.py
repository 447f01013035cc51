"""Annealing: a sequence by hand, the frequency of acceptance, and energies that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import PrivateEnergy
from lehr.errors import InvalidValue
from lehr.interfaces import SlotState
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed


class Told:
    """A change of energy as it stands, and a number that cannot be used where it must not be drawn."""

    def __init__(self, *, change: float, drawn: float | None) -> None:
        self.told, self.drawn = change, drawn

    def change(self, step_scale: float = 1.0) -> float:
        return self.told

    def best(self, step_scales: Sequence[float]) -> int:
        raise AssertionError

    def uniform(self) -> float:
        if self.drawn is None:
            raise TypeError
        return self.drawn


def state(accepted: int, rejected_in_a_row: int, inverse_temperature: float) -> dict[str, float]:
    return {
        "accepted": accepted,
        "rejected_in_a_row": rejected_in_a_row,
        "inverse_temperature": inverse_temperature,
    }


def decided(rule: Annealed, held: SlotState, proposal: Proposed) -> tuple[bool, dict[str, Any]]:
    decision = rule.decide(held, proposal, NOTHING_RELEASED)
    assert decision.step_scale in (0.0, 1.0)
    return decision.is_accepted, dict(decision.state)


def rises(by: float, drawn: float = 0.5) -> Proposed:
    return Proposed(now=2.0, proposed=2.0 + by, drawn=drawn)


def test_the_papers_algorithm_by_hand() -> None:
    rule = Annealed(initial_inverse_temperature=10.0, rejection_threshold=2)
    # Rejected at Q0 = 10, for e^-5 < 0.5; Q is then Q0 times nothing accepted, so that the next is surely accepted.
    steps = [
        (rises(0.5), False, state(0, 1, 0.0)),
        (rises(0.5), True, state(1, 0, 10.0)),
        (rises(-0.5), True, state(2, 0, 20.0)),
        (rises(0.1, drawn=0.13), True, state(3, 0, 30.0)),  # e^-2 = 0.135
        (rises(0.1, drawn=0.05), False, state(3, 1, 30.0)),  # e^-3 = 0.0498
        (rises(0.1, drawn=0.05), False, state(3, 2, 30.0)),
        (rises(9.0, drawn=1.0), True, state(4, 0, 40.0)),  # two rejections in a row force it
    ]
    held = rule.start()
    assert held == state(0, 0, 10.0)
    for proposal, is_accepted, after in steps:
        assert decided(rule, held, proposal) == (is_accepted, after)
        held = after


def test_the_floored_cooling_is_never_surely_accepting() -> None:
    rule = Annealed(cooling="floored")
    is_accepted, after = decided(rule, rule.start(), rises(0.5))
    assert (is_accepted, after["inverse_temperature"]) == (False, 10.0)
    assert decided(rule, after, rises(0.5))[0] is False
    assert decided(rule, state(3, 0, 30.0), rises(-1))[1]["inverse_temperature"] == 40.0


def test_the_classic_cooling_multiplies_the_temperature_after_every_candidate() -> None:
    rule = Annealed(initial_inverse_temperature=8.0, cooling="classic", cooling_rate=0.5)
    is_accepted, after = decided(rule, rule.start(), rises(0.5))
    assert (is_accepted, after["inverse_temperature"]) == (False, 16.0)
    assert decided(rule, after, rises(-0.5))[1]["inverse_temperature"] == 32.0


def test_an_equal_energy_is_accepted() -> None:
    assert decided(Annealed(), state(5, 0, 1e9), rises(0.0, drawn=1.0))[0]


@pytest.mark.parametrize("accepted", [1, 4])
def test_the_frequency_of_acceptance_is_the_law_of_the_paper(accepted: int) -> None:
    draws, rise, first = 20_000, 0.04, 10.0
    rule = Annealed(initial_inverse_temperature=first)
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(7)).tolist()
    held = decided(rule, state(accepted - 1, 0, first), rises(-1))[1]
    frequency = sum(decided(rule, held, rises(rise, drawn=drawn))[0] for drawn in uniforms) / draws
    tolerance = 5 * 0.5 / math.sqrt(draws)
    assert abs(frequency - math.exp(-rise * first * accepted)) < tolerance
    wrong = [1.0, math.exp(-rise), math.exp(-rise / (first * accepted)), math.exp(-rise * first * (accepted + 1))]
    if accepted > 1:
        wrong.append(math.exp(-rise * first))
    assert all(abs(frequency - other) > tolerance for other in wrong)


@pytest.mark.parametrize("energy", [math.nan, math.inf, -math.inf])
def test_a_candidate_without_an_energy_is_never_accepted(energy: float) -> None:
    rule = Annealed(rejection_threshold=2)
    for held in (rule.start(), state(0, 0, 0.0), state(3, 2, 30.0)):
        is_accepted, after = decided(rule, held, Proposed(now=1.0, proposed=energy, drawn=0.001))
        assert not is_accepted
        assert after["rejected_in_a_row"] == held["rejected_in_a_row"] + 1


def test_the_threshold_waits_for_a_candidate_with_an_energy() -> None:
    rule = Annealed(rejection_threshold=2)
    _, held = decided(rule, state(3, 2, 30.0), Proposed(now=1.0, proposed=math.nan))
    assert decided(rule, held, rises(100.0, drawn=1.0)) == (True, state(4, 0, 40.0))


@pytest.mark.parametrize("energy", [math.nan, math.inf])
def test_weights_without_an_energy_are_left_for_any_that_have_one(energy: float) -> None:
    assert decided(Annealed(), state(3, 0, 30.0), Proposed(now=energy, proposed=1.0, drawn=1.0))[0]


@pytest.mark.parametrize("held", [1e-300, 1.0, 1e300])
def test_extreme_energies_and_temperatures_do_not_overflow(held: float) -> None:
    rule = Annealed(cooling="classic", cooling_rate=1e-300)
    is_accepted, after = decided(rule, state(0, 0, held), Proposed(now=-1e308, proposed=1e308, drawn=0.5))
    assert is_accepted is False
    assert math.isfinite(after["inverse_temperature"])
    assert decided(rule, after, Proposed(now=1e308, proposed=-1e308))[0]


def test_without_a_temperature_every_rise_is_accepted_even_one_that_overflows() -> None:
    assert decided(Annealed(), state(0, 0, 0.0), Proposed(now=-1e308, proposed=1e308, drawn=1.0))[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"initial_inverse_temperature": 0.0},
        {"initial_inverse_temperature": math.nan},
        {"rejection_threshold": 0},
        {"rejection_threshold": 1.5},
        {"cooling": "paper"},
        {"cooling": "classic"},
        {"cooling": "classic", "cooling_rate": 1.0},
        {"cooling_rate": 0.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Annealed(**wrong)


@pytest.mark.parametrize("threshold", [1, 3, 10])
def test_never_more_rejections_in_a_row_than_the_threshold_and_just_as_many(threshold: int) -> None:
    rule = Annealed(rejection_threshold=threshold, cooling="floored")
    held: SlotState = rule.start()
    runs: list[int] = []
    row = 0
    for _ in range(5 * (threshold + 1)):
        is_accepted, held = decided(rule, held, rises(1e9, drawn=0.999))
        runs, row = ([*runs, row], 0) if is_accepted else (runs, row + 1)
    assert runs == [threshold] * 5
    assert rule.most_rejections == threshold


def at(value: float | torch.Tensor, run: int) -> float:
    """The state of one run of many; a temperature that all of them share stands there once."""
    held = torch.as_tensor(value)
    return held[run].item() if held.ndim else held.item()


@pytest.mark.parametrize(
    "rule",
    [
        Annealed(rejection_threshold=2),
        Annealed(rejection_threshold=2, cooling="floored"),
        Annealed(rejection_threshold=2, cooling="classic", cooling_rate=0.5),
    ],
    ids=lambda rule: rule.cooling,
)
def test_many_runs_at_once_decide_as_each_of_them_alone(rule: Annealed) -> None:
    num_runs, steps = 40, 12
    generator = torch.Generator().manual_seed(3)
    changes = torch.randn(steps, num_runs, generator=generator, dtype=torch.float64)
    changes[torch.rand(changes.shape, generator=generator) < 0.1] = math.inf
    changes[torch.rand(changes.shape, generator=generator) < 0.1] = -math.inf
    changes[torch.rand(changes.shape, generator=generator) < 0.1] = math.nan
    uniforms = torch.rand(changes.shape, generator=generator, dtype=torch.float64)
    together: SlotState = rule.start()
    alone: list[SlotState] = [rule.start()] * num_runs
    for change, uniform in zip(changes, uniforms, strict=True):
        is_accepted, together = rule.decide_each(together, change, uniform.clone)
        for run in range(num_runs):
            proposal = Told(change=change[run].item(), drawn=uniform[run].item())
            decision = rule.decide(alone[run], proposal, NOTHING_RELEASED)
            alone[run] = decision.state
            assert decision.is_accepted == bool(is_accepted[run])
            assert {name: at(value, run) for name, value in together.items()} == decision.state


def test_the_uniform_number_is_drawn_only_where_something_is_left_to_chance() -> None:
    rule = Annealed(rejection_threshold=2)
    for held, change in ((rule.start(), -1.0), (rule.start(), math.inf), (state(3, 2, 30.0), 5.0)):
        rule.decide(held, Told(change=change, drawn=None), NOTHING_RELEASED)
    with pytest.raises(TypeError):
        rule.decide(rule.start(), Told(change=0.1, drawn=None), NOTHING_RELEASED)


def test_by_a_private_energy_the_law_is_the_same() -> None:
    energy = PrivateEnergy(loss_clip=1.0, noise_multiplier=1.0, expected_batch_size=8)
    private, public = Annealed(energy=energy), Annealed()
    for drawn in (0.1, 0.3, 0.4, 0.9):
        proposals = state(3, 0, 30.0), rises(0.04, drawn=drawn)
        assert decided(private, *proposals) == decided(public, *proposals)
    assert private.to_json()["energy"] == energy.to_json()
