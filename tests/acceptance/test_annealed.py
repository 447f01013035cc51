"""Annealing: a sequence by hand, the frequency of acceptance, and energies that are not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import PrivateEnergy
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed


def state(accepted: int, rejected_in_a_row: int, inverse_temperature: float) -> dict[str, float]:
    return {"accepted": accepted, "rejected_in_a_row": rejected_in_a_row, "inverse_temperature": inverse_temperature}


def decide(rule: Annealed, before: ComponentState, proposal: Proposed) -> tuple[bool, dict[str, Any]]:
    decision = rule.decide(before, proposal, NOTHING_RELEASED)
    assert decision.step_scale in (0.0, 1.0)
    return decision.is_accepted, dict(decision.state)


def rises(by: float, drawn: float = 0.5) -> Proposed:
    return Proposed(now=2.0, proposed=2.0 + by, drawn=drawn)


def test_the_papers_algorithm_by_hand() -> None:
    energy = PrivateEnergy(loss_clip=1.0, noise_multiplier=1.0, expected_batch_size=8)
    for rule in (Annealed(rejection_threshold=2), Annealed(rejection_threshold=2, energy=energy)):
        # Rejected at Q0 = 10, for e^-5 < 0.5; Q is then Q0 times nothing accepted, so the next is surely accepted.
        steps = [
            (rises(0.5), False, state(0, 1, 0.0)),
            (rises(0.5), True, state(1, 0, 10.0)),
            (rises(-0.5), True, state(2, 0, 20.0)),
            (rises(0.1, drawn=0.13), True, state(3, 0, 30.0)),  # e^-2 = 0.135
            (rises(0.1, drawn=0.05), False, state(3, 1, 30.0)),  # e^-3 = 0.0498
            (rises(0.1, drawn=0.05), False, state(3, 2, 30.0)),
            (rises(9.0, drawn=1.0), True, state(4, 0, 40.0)),  # two rejections in a row force it
            (rises(0.0, drawn=1.0), True, state(5, 0, 50.0)),
        ]
        before = rule.start()
        assert before == state(0, 0, 10.0)
        for proposal, is_accepted, after in steps:
            assert decide(rule, before, proposal) == (is_accepted, after)
            before = after


@pytest.mark.parametrize(
    "rule, temperatures",
    [
        (Annealed(cooling="floored"), [10.0, 10.0]),
        (Annealed(initial_inverse_temperature=8.0, cooling="classic", cooling_rate=0.5), [16.0, 32.0]),
    ],
    ids=lambda rule: getattr(rule, "cooling", ""),
)
def test_other_coolings(rule: Annealed, temperatures: list[float]) -> None:
    is_accepted, after = decide(rule, rule.start(), rises(0.5))
    assert (is_accepted, after["inverse_temperature"]) == (False, temperatures[0])
    is_accepted, after = decide(rule, after, rises(-0.5))
    assert (is_accepted, after["inverse_temperature"]) == (True, temperatures[1])


@pytest.mark.parametrize("accepted", [1, 4])
def test_the_frequency_of_acceptance_is_the_papers_probability(accepted: int) -> None:
    draws, rise, first = 20_000, 0.04, 10.0
    rule = Annealed(initial_inverse_temperature=first)
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    before = decide(rule, state(accepted - 1, 0, first), rises(-1))[1]
    is_accepted, _ = rule.decide_each(before, torch.full((draws,), rise, dtype=torch.float64), uniforms.clone)
    frequency = is_accepted.double().mean().item()
    tolerance = 5 * 0.5 / math.sqrt(draws)
    assert abs(frequency - math.exp(-rise * first * accepted)) < tolerance
    wrong = [1.0, math.exp(-rise), math.exp(-rise / (first * accepted)), math.exp(-rise * first * (accepted + 1))]
    if accepted > 1:
        wrong.append(math.exp(-rise * first))
    assert all(abs(frequency - other) > tolerance for other in wrong)


@pytest.mark.parametrize("energy", [math.nan, math.inf, -math.inf])
def test_a_candidate_without_an_energy_is_never_accepted(energy: float) -> None:
    rule = Annealed(rejection_threshold=2)
    for before in (rule.start(), state(0, 0, 0.0), state(3, 2, 30.0)):
        is_accepted, after = decide(rule, before, Proposed(now=1.0, proposed=energy, drawn=0.001))
        assert not is_accepted
        assert after["rejected_in_a_row"] == before["rejected_in_a_row"] + 1
    assert decide(rule, after, rises(100.0, drawn=1.0)) == (True, state(4, 0, 40.0))  # the threshold has waited


@pytest.mark.parametrize("energy", [math.nan, math.inf])
def test_weights_without_an_energy_are_left_for_any_that_have_one(energy: float) -> None:
    assert decide(Annealed(), state(3, 0, 30.0), Proposed(now=energy, proposed=1.0, drawn=1.0))[0]


@pytest.mark.parametrize("inverse_temperature", [1e-300, 1.0, 1e300])
def test_extreme_energies_and_temperatures_do_not_overflow(inverse_temperature: float) -> None:
    rule = Annealed(cooling="classic", cooling_rate=1e-300)
    up, down = Proposed(now=-1e308, proposed=1e308), Proposed(now=1e308, proposed=-1e308)
    is_accepted, after = decide(rule, state(0, 0, inverse_temperature), up)
    assert is_accepted is False
    assert math.isfinite(after["inverse_temperature"])
    assert decide(rule, after, down)[0]
    assert decide(Annealed(), state(0, 0, 0.0), up)[0]  # without a temperature every rise is accepted


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
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Annealed(**wrong)


@pytest.mark.parametrize("threshold", [1, 3, 10])
def test_rejections_in_a_row_reach_the_threshold_and_no_more(threshold: int) -> None:
    rule = Annealed(rejection_threshold=threshold, cooling="floored")
    after: ComponentState = rule.start()
    decisions = []
    for _ in range(3 * (threshold + 1)):
        is_accepted, after = decide(rule, after, rises(1e9, drawn=0.999))
        decisions.append(is_accepted)
    assert decisions == ([False] * threshold + [True]) * 3
    assert rule.most_rejections == threshold


@pytest.mark.parametrize("cooling", [{}, {"cooling": "floored"}, {"cooling": "classic", "cooling_rate": 0.5}], ids=str)
def test_many_runs_at_once_decide_as_each_alone(cooling: dict[str, Any]) -> None:
    rule = Annealed(rejection_threshold=2, **cooling)
    num_runs, steps = 40, 12
    generator = torch.Generator().manual_seed(3)
    changes = torch.randn(steps, num_runs, generator=generator, dtype=torch.float64)
    for special in (math.inf, -math.inf, math.nan):
        changes[torch.rand(changes.shape, generator=generator) < 0.1] = special
    uniforms = torch.rand(changes.shape, generator=generator, dtype=torch.float64)
    together: ComponentState = rule.start()
    alone: list[ComponentState] = [rule.start()] * num_runs
    for change, uniform in zip(changes, uniforms, strict=True):
        is_accepted, together = rule.decide_each(together, change, uniform.clone)
        for run in range(num_runs):
            one, after = rule.decide_each(alone[run], change[run], uniform[run].clone)
            alone[run] = after
            assert bool(one) == bool(is_accepted[run])
            expected = {name: torch.as_tensor(value).expand(num_runs)[run] for name, value in together.items()}
            assert expected == after


def test_the_uniform_number_is_drawn_only_where_something_is_left_to_chance() -> None:
    rule = Annealed(rejection_threshold=2)
    for before, proposed in ((rule.start(), 0.0), (rule.start(), math.inf), (state(3, 2, 30.0), 6.0)):
        rule.decide(before, Proposed(now=1.0, proposed=proposed, drawn=None), NOTHING_RELEASED)
    with pytest.raises(AssertionError):
        rule.decide(rule.start(), Proposed(now=1.0, proposed=1.1, drawn=None), NOTHING_RELEASED)
