"""The other acceptance rules, energies in files, and the protocol that every rule keeps."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from lehr.acceptance import Always, Annealed, BestStep, NoisyMax, NoisyTest, Salvage
from lehr.acceptance.proposal import (
    Acceptance,
    Decision,
    Energy,
    PrivateChoice,
    PrivateEnergy,
    PublicEnergy,
    energy_from_json,
)
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, ReleasedSum
from tests.acceptance.proposed import NOTHING_RELEASED, Proposed, released

SOUND: dict[str, Any] = {"loss_clip": 0.5, "noise_multiplier": 1.0, "expected_batch_size": 8}
PRIVATE = PrivateEnergy(**SOUND)
CHOICE = PrivateChoice(loss_clip=1.0, epsilon=0.1)

# --- Every rule -----------------------------------------------------------------------------------------------------

ALL: dict[str, Acceptance] = {
    "always": Always(),
    "annealed": Annealed(),
    "classic": Annealed(cooling="classic", cooling_rate=0.9),
    "private": Annealed(energy=PRIVATE),
    "noisy test": NoisyTest(energy=PRIVATE),
    "noisy max": NoisyMax(energy=CHOICE, step_sizes=2, adapted_every=2, headroom=0.0),
    "salvage": Salvage(Annealed()),
    "best step": BestStep(Annealed(), (0.5, 1.0, 2.0)),
    "both": BestStep(Salvage(Annealed()), (0.5, 1.0, 2.0)),
}
every_acceptance = pytest.mark.parametrize("acceptance", ALL.values(), ids=ALL.keys())


def through_a_file(state: ComponentState) -> dict[str, float | Tensor]:
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    return {**json.loads(json.dumps(numbers, allow_nan=False)), **load(save(tensors))}


def plain(state: ComponentState) -> dict[str, object]:
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in state.items()}


def decide(acceptance: Acceptance, state: ComponentState, drawn: float) -> Decision:
    proposal = Proposed(now=1.0, proposed=1.05, drawn=drawn, elsewhere={0.5: 1.02, 2.0: 1.2})
    just = released(drawn, 1.0)
    decision = acceptance.decide(state, proposal, acceptance.combined(state, just))
    assert just.values["weight"].tolist() == torch.tensor([drawn, 1.0]).tolist()
    return decision


@every_acceptance
def test_a_state_from_a_file_decides_the_same_and_deciding_does_not_change_it(acceptance: Acceptance) -> None:
    state = acceptance.start()
    for drawn in (0.1, 0.9, 0.95, 0.3, 0.99):
        before = plain(state)
        one, other = decide(acceptance, state, drawn), decide(acceptance, through_a_file(state), drawn)
        assert (one.step_scale, plain(one.state)) == (other.step_scale, plain(other.state))
        assert plain(state) == before
        state = one.state


def test_every_rule_has_its_own_json_form() -> None:
    forms = [json.dumps(acceptance.to_json(), sort_keys=True, allow_nan=False) for acceptance in ALL.values()]
    assert len(set(forms)) == len(forms)
    assert all(json.loads(form)["kind"] for form in forms)


# --- Energies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "energy",
    [
        PublicEnergy(),
        PRIVATE,
        PrivateEnergy(**SOUND, clipped="batch"),
        CHOICE,
        PrivateChoice(loss_clip=4.0, epsilon=0.01, expected_batch_size=64),
    ],
    ids=str,
)
def test_the_json_form_of_an_energy_reads_back(energy: Energy) -> None:
    assert energy_from_json(json.loads(json.dumps(energy.to_json()))) == energy


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "much"])
@pytest.mark.parametrize(
    "kind, name",
    [
        *((PrivateEnergy, name) for name in SOUND),
        *((PrivateChoice, name) for name in ("loss_clip", "epsilon", "expected_batch_size")),
    ],
)
def test_impossible_numbers_of_an_energy_are_refused(kind: Any, name: str, value: object) -> None:
    sound = SOUND if kind is PrivateEnergy else {"loss_clip": 1.0, "epsilon": 1.0}
    with pytest.raises(InvalidValue, match=name):
        kind(**{**sound, name: value})


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {},
        {"kind": ["public"]},
        {"kind": "noisy"},
        {"kind": "public", "records": 3},
        {"kind": "private", "loss_clip": 1.0},
        {"kind": "private", **SOUND, "delta": 1e-5},
        {"kind": "private", **SOUND, "clipped": "mean"},
        {"kind": "private choice", "epsilon": 1.0},
    ],
    ids=str,
)
def test_a_bad_json_form_of_an_energy_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        energy_from_json(shape)


# --- Always, noisy test, noisy max ----------------------------------------------------------------------------------


def test_always_accepts_the_released_sum() -> None:
    always, just = Always(), released(1.0)
    assert always.decide(always.start(), Proposed(now=0.0, proposed=math.nan), just) == Decision(1.0, {})
    assert always.combined({}, just) is just
    assert (always.energy, always.most_rejections) == (None, 0)


@pytest.mark.parametrize(
    "energy, threshold, highest",
    [(PRIVATE, -1.0, -0.5), (PRIVATE, 0.0, 0.0), (PRIVATE, 0.5, 0.25), (PublicEnergy(), -1.0, -1.0)],
)
def test_a_noisy_test_accepts_changes_up_to_the_threshold_in_clips(
    energy: Any, threshold: float, highest: float
) -> None:
    rule = NoisyTest(energy=energy, threshold=threshold)
    state = rule.start()
    for change, is_accepted in ((highest, True), (math.nextafter(highest, math.inf), False), (math.nan, False)):
        decision = rule.decide(state, Proposed(now=0.0, proposed=change), NOTHING_RELEASED)
        assert decision.is_accepted == is_accepted
        state = decision.state
    assert (state, rule.most_rejections) == ({"accepted": 1}, None)


@dataclass(frozen=True)
class Choosing:
    """Chooses an index, whatever the step sizes, and records them; nothing else may be asked."""

    index: int
    asked: list[list[float]] = field(default_factory=list)

    def best(self, step_scales: Sequence[float]) -> int:
        self.asked.append(list(step_scales))
        return self.index

    def change(self, step_scale: float = 1.0) -> float:
        raise AssertionError

    def uniform(self) -> float:
        raise AssertionError


def test_noisy_max_chooses_among_equal_parts_of_the_largest_and_zero() -> None:
    rule, proposal = NoisyMax(energy=CHOICE, step_sizes=4, largest=2.0, adapted_every=1), Choosing(3)
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == 1.5
    assert proposal.asked == [[0.0, 0.5, 1.0, 1.5, 2.0]]
    rejected = rule.decide(rule.start(), Choosing(0), NOTHING_RELEASED)
    assert (rejected.is_accepted, rejected.state, rule.most_rejections) == (False, rule.start(), None)


def test_the_largest_step_follows_the_largest_chosen() -> None:
    rule = NoisyMax(energy=CHOICE, step_sizes=4, largest=2.0, adapted_every=3, headroom=0.1)
    state: ComponentState = rule.start()
    for index in (1, 0, 3, 0):
        state = rule.decide(state, Choosing(index), NOTHING_RELEASED).state
    assert state == {"largest": 2.0, "largest_chosen": 1.5, "accepted": 2}
    state = rule.decide(state, Choosing(2), NOTHING_RELEASED).state
    assert state == {"largest": pytest.approx(1.65), "largest_chosen": 0.0, "accepted": 3}
    assert rule.decide(state, Choosing(4), NOTHING_RELEASED).step_scale == pytest.approx(1.65)


@pytest.mark.parametrize(
    "kind, wrong",
    [
        *((NoisyTest, {"threshold": value}) for value in (math.nan, math.inf, -math.inf, 1e7)),
        (NoisyTest, {"energy": CHOICE}),
        (NoisyMax, {"energy": PRIVATE}),
        (NoisyMax, {"step_sizes": 0}),
        (NoisyMax, {"largest": math.nan}),
        (NoisyMax, {"adapted_every": 0}),
        (NoisyMax, {"headroom": -0.1}),
    ],
    ids=str,
)
def test_impossible_settings_are_refused_by_name(kind: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as refused:
        kind(**{"energy": PRIVATE if kind is NoisyTest else CHOICE} | wrong)
    assert [refused.value.name] == list(wrong)


# --- Best step ------------------------------------------------------------------------------------------------------

SCALES = (0.5, 1.0, 2.0)


@pytest.mark.parametrize("best", SCALES)
def test_the_step_size_with_the_least_energy_is_passed_on(best: float) -> None:
    energies = {scale: 0.9 + abs(scale - best) / 100 for scale in SCALES}
    rule = BestStep(Annealed(), SCALES)
    decision = rule.decide(
        rule.start(), Proposed(now=1.0, proposed=energies.pop(1.0), elsewhere=energies), NOTHING_RELEASED
    )
    assert (decision.step_scale, decision.state["accepted"]) == (best, 1)


@pytest.mark.parametrize(
    "drawn, energy, expected",
    [(0.6, 1.05, 0.5), (0.62, 1.05, 0.0), (0.01, math.inf, 0.0)],  # e^-0.5 = 0.61
)
def test_the_best_step_is_accepted_or_rejected_by_its_own_energy(drawn: float, energy: float, expected: float) -> None:
    rule = BestStep(Annealed(initial_inverse_temperature=10.0), SCALES)
    proposal = Proposed(now=1.0, proposed=math.inf, drawn=drawn, elsewhere={0.5: energy, 2.0: math.inf})
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == expected


def test_nested_best_steps_multiply_the_step_sizes() -> None:
    rule = BestStep(BestStep(Annealed(), (1.0, 2.0)), (0.5, 1.0))
    proposal = Proposed(now=1.0, proposed=0.8, elsewhere={0.5: 0.9, 2.0: 0.7})
    assert rule.decide(rule.start(), proposal, NOTHING_RELEASED).step_scale == 2.0


@pytest.mark.parametrize("name", ["always", "private", "noisy test", "noisy max"])
def test_best_step_needs_a_public_energy(name: str) -> None:
    with pytest.raises(InvalidValue, match="inner"):
        BestStep(ALL[name])


@pytest.mark.parametrize("scales", [(), (0.0, 1.0), (math.nan,), (-1.0,)], ids=str)
def test_impossible_step_sizes_are_refused(scales: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match="step_scales"):
        BestStep(Annealed(), scales)


# --- Salvage --------------------------------------------------------------------------------------------------------

REJECTED, ACCEPTED = Proposed(now=1.0, proposed=9.0, drawn=0.99), Proposed(now=1.0, proposed=0.5)
SALVAGE = Salvage(Annealed(cooling="floored"))


def after(state: ComponentState, proposal: Proposed, just: ReleasedSum) -> tuple[ReleasedSum, ComponentState]:
    combined = SALVAGE.combined(state, just)
    return combined, SALVAGE.decide(state, proposal, combined).state


def test_rejected_sums_are_averaged_until_one_is_accepted() -> None:
    state: ComponentState = SALVAGE.start()
    for k in (1, 5, 12):
        combined, state = after(state, REJECTED, released(float(k), 2.0 * k))
    torch.testing.assert_close(combined.values["weight"], torch.tensor([6.0, 12.0]))
    assert combined.noise_multiplier == pytest.approx(2.0 / math.sqrt(3))
    _, state = after(state, ACCEPTED, released(3.0, 4.0))
    assert not any(name.startswith("carried/") for name in state)
    fresh = released(5.0, 6.0)
    assert SALVAGE.combined(state, fresh) is fresh


def test_a_sum_with_less_noise_has_more_weight() -> None:
    _, state = after(SALVAGE.start(), REJECTED, released(0.0, noise_multiplier=1.0))
    combined, _ = after(state, REJECTED, released(10.0, noise_multiplier=2.0))
    assert float(combined.values["weight"]) == pytest.approx(10.0 / 5)
    assert combined.noise_multiplier == pytest.approx(1 / math.sqrt(1 + 1 / 4))


@pytest.mark.parametrize("is_shaped", [False, True])
def test_the_mean_has_the_stated_noise(is_shaped: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    state: ComponentState = SALVAGE.start()
    for noise_multiplier in (1.0, 3.0, 2.0):
        values = noise_multiplier * torch.randn(200_000, generator=generator)
        std: Any = {"weight": torch.full_like(values, noise_multiplier)} if is_shaped else noise_multiplier
        just = ReleasedSum(values={"weight": values}, noise_std=std, noise_multiplier=noise_multiplier)
        combined, state = after(state, REJECTED, just)
    stated = torch.as_tensor(combined.std_of("weight")).max().item()
    assert float(combined.values["weight"].std()) == pytest.approx(stated, rel=0.02)
    assert stated == pytest.approx(combined.noise_multiplier)


def test_only_released_values_are_carried() -> None:
    """Two that saw the same sums and decided alike carry the same, whatever the energies were."""
    (_, one), (_, other) = (
        after(SALVAGE.start(), Proposed(now=1.0, proposed=proposed, drawn=0.99), released(1.5))
        for proposed in (9.0, 7.0)
    )
    assert plain(one) == plain(other)
    assert plain(one)["carried/weight"] == [1.5]


@pytest.mark.parametrize("keeps_momentum", [False, True])
def test_the_inner_rule_decides_as_if_it_were_alone(keeps_momentum: bool) -> None:
    alone = Annealed(cooling="floored", keeps_momentum=keeps_momentum)
    rule = Salvage(alone)
    state, before = rule.start(), alone.start()
    for proposal in (REJECTED, ACCEPTED, REJECTED, REJECTED):
        just = released(1.0)
        decision = alone.decide(before, proposal, just)
        salvaged = rule.decide(state, proposal, rule.combined(state, just))
        assert (salvaged.step_scale, salvaged.keeps_momentum) == (decision.step_scale, keeps_momentum)
        inner = {name.removeprefix("inner/"): value for name, value in salvaged.state.items() if "inner/" in name}
        assert inner == decision.state
        state, before = salvaged.state, decision.state
    assert (rule.most_rejections, rule.energy) == (alone.most_rejections, alone.energy)
