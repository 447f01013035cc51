"""Attacks on what DPSUR and AGD ask about private records: many answers of the real code, with a record and without it.

Each attack must stay below the ε that is charged, come close to it, and exceed it once the noise is halved.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lehr import accounting
from lehr.acceptance.proposal import Energy, PrivateChoice, PrivateEnergy
from lehr.accounting.events import Adjacency, PureDP
from lehr.attacks.harness import observed, plan_run, train_in_temporary_folder
from lehr.auditing import Scores, bounds
from lehr.data import InMemory
from lehr.interfaces import PrivateSum, ReleasedSum, Tensors
from lehr.methods.dpsur import dpsur
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.run import loss_oracle
from lehr.run.loss_oracle import LossOracle, event_of
from lehr.run.mechanism import Method
from tests.run.test_loss_oracle import AFTER, BEFORE, Chosen, Remembering, held_loss
from tests.sizes import sizes

DELTA = 1e-5
ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
CLIP = 0.5
ANSWERS, FEWER_ANSWERS = 1_500, 400  # to come close to ε, and to refute half the noise
CHOICES = 3_000

Record = tuple[float, float]  # its loss before and after
RISES, FALLS, STAYS = (0.0, 1e3), (1e3, 0.0), (0.0, 0.0)
LAPLACE = loss_oracle._laplace


def oracle(energy: Energy, records: list[Record], adjacency: Adjacency) -> LossOracle:
    """The library's, over records with these losses; as many are stated as the larger data set has."""
    asked = event_of(energy, records=8, adjacency=adjacency)
    plan = Plan(
        noise_multiplier=1.0,
        expected_batch_size=8,
        records=8,
        steps=1,
        delta=DELTA,
        adjacency=adjacency,
        asked=asked,
    )
    held = InMemory(torch.tensor(records, dtype=torch.float64), torch.zeros(len(records)))
    same: Callable[[Tensor], Tensor] = lambda given: given  # noqa: E731
    parts = {"model": Chosen(), "loss_fn": held_loss, "prepare": same, "public": None}
    return Remembering(energy=energy, plan=plan, private=held, **parts)  # type: ignore[arg-type]


def key_of(name: str) -> RunKey:
    return RunKey(hashlib.sha256(name.encode()).digest())


def changes(energy: PrivateEnergy, records: list[Record], adjacency: Adjacency, name: str, num: int) -> np.ndarray:
    asked, key = oracle(energy, records, adjacency), key_of(name)
    return np.array([asked.private_change(BEFORE, AFTER, key.at(step, 0)) for step in range(num)])


def halve_normals(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = StepRandomness.normals
    monkeypatch.setattr(
        StepRandomness,
        "normals",
        lambda self, purpose, like: {name: value / 2 for name, value in drawn(self, purpose, like).items()},
    )


# What is asked, of which neighbours, and for each side the records that differ.
TESTS: dict[str, tuple[Literal["records", "batch"], Adjacency, list[Record], list[Record]]] = {
    "each record clipped, one more": ("records", ADD, [RISES], []),
    "each record clipped, one replaced": ("records", REPLACE, [RISES], [FALLS]),
    "the mean clipped, one replaced": ("batch", REPLACE, [RISES], [FALLS]),
}


def attacked_test(case: str, num: int) -> tuple[float, float]:
    """What the answers of DPSUR's test certify, and what one answer is charged."""
    clipped, adjacency, members, others = TESTS[case]
    energy = PrivateEnergy(loss_clip=CLIP, noise_multiplier=1.3, expected_batch_size=8, clipped=clipped)
    base = [STAYS] * 7
    scores = Scores(
        members=changes(energy, base + members, adjacency, f"{case}, with", num),
        others=changes(energy, base + others, adjacency, f"{case}, without", num),
    )
    middle = float(np.concatenate([scores.members, scores.others]).mean())
    found = bounds.gaussian_tradeoff(scores, threshold=middle, delta=DELTA)
    charged = event_of(energy, records=8, adjacency=adjacency)
    return found.epsilon, accounting.bound(charged, delta=DELTA, adjacency=adjacency).epsilon


@pytest.mark.parametrize("case", TESTS)
def test_the_answers_of_a_noisy_test_stay_below_what_is_charged_and_come_close(case: str) -> None:
    certified, charged = attacked_test(case, ANSWERS)
    assert 0.75 * charged <= certified <= charged


@pytest.mark.parametrize("case", TESTS)
def test_a_noisy_test_with_half_its_noise_is_refuted(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    halve_normals(monkeypatch)
    certified, charged = attacked_test(case, FEWER_ANSWERS)
    assert certified > 1.3 * charged


def choices(energy: PrivateChoice, records: list[Record], adjacency: Adjacency, name: str, num: int) -> np.ndarray:
    asked, key = oracle(energy, records, adjacency), key_of(name)
    found = [asked.private_choice([BEFORE, AFTER], key.at(step, 0)) for step in range(num)]
    return np.array(found, dtype=float)


# The records that differ, and others that speak against the last candidate, so that the far tail of the noise decides.
CHOSEN = {
    "one more": (ADD, [FALLS], [], [RISES] * 2),
    "one replaced": (REPLACE, [FALLS], [RISES], [RISES] * 3 + [STAYS] * 4),
}


def attacked_choice(case: str, batch_size: float | None, num: int) -> tuple[float, float]:
    """What AGD's choices certify, and what one choice is charged."""
    adjacency, members, others, base = CHOSEN[case]
    energy = PrivateChoice(loss_clip=CLIP, epsilon=2.0, expected_batch_size=batch_size)
    scores = Scores(
        members=choices(energy, base + members, adjacency, f"choice, {case}, {batch_size}, with", num),
        others=choices(energy, base + others, adjacency, f"choice, {case}, {batch_size}, without", num),
    )
    found = bounds.clopper_pearson(scores, threshold=0.5, delta=0.0)
    charged = event_of(energy, records=8, adjacency=adjacency)
    assert isinstance(charged, PureDP)
    return found.epsilon, charged.epsilon


CASES = pytest.mark.parametrize(
    "case, batch_size",
    [
        ("one more", None),
        pytest.param("one replaced", None, marks=pytest.mark.whole),
        pytest.param("one more", 7, marks=pytest.mark.whole),
    ],
)


@CASES
def test_choices_stay_below_what_is_charged_and_come_close(case: str, batch_size: float | None) -> None:
    certified, charged = attacked_choice(case, batch_size, CHOICES if batch_size is None else 8_000)
    assert 0.5 * charged <= certified <= charged


@CASES
def test_choices_with_half_their_noise_are_refuted(
    case: str, batch_size: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_oracle, "_laplace", lambda uniforms: LAPLACE(uniforms) / 2)
    certified, charged = attacked_choice(case, batch_size, CHOICES if batch_size is None else 8_000)
    assert certified > charged


class Line(nn.Module):
    """The loss of a record is its inner product with the weights, a million times over: both clips are always full."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        return 1e6 * inputs @ self.weights


STEPS = 3
GRADIENT_NOISE, TEST_NOISE = 3.5, 3.0
TARGET = torch.tensor([1.0, 0.0, 0.0])


def dpsur_method() -> Method:
    return dpsur(
        clip_norm=1.0,
        momentum=0.0,
        loss_clip=CLIP,
        test_noise_multiplier=TEST_NOISE,
        test_batch_size=8,
        clipped="records",
    )


def plan_of(method: Method) -> Plan:
    return Plan(
        noise_multiplier=GRADIENT_NOISE,
        expected_batch_size=8,
        records=8,
        steps=STEPS,
        delta=DELTA,
        asked=event_of(method.acceptance.energy, records=8, adjacency=ADD),
    )


def whole_runs(monkeypatch: pytest.MonkeyPatch, num_runs: int, *, with_target: bool) -> np.ndarray:
    """The log-likelihood ratio of all that each of many runs of DPSUR releases: its sums, and what its tests say."""
    records = torch.zeros(8 if with_target else 7, 3)
    if with_target:
        records[-1] = TARGET
    private = InMemory(records, torch.zeros(len(records), dtype=torch.long))
    method = dpsur_method()
    plan = plan_of(method)
    heard: list[float] = []
    answer = LossOracle.private_change

    def hear(_: PrivateSum, released: ReleasedSum) -> None:
        along = float(released.values["weights"].double() @ TARGET.double())
        heard.append((along - 0.5) / GRADIENT_NOISE**2)
        heard.append(-math.copysign(1.0, along))  # the way in which the record's loss will go, as everybody knows

    def overhear(self: LossOracle, before: Tensors, after: Tensors, randomness: StepRandomness) -> float:
        told = answer(self, before, after, randomness)
        heard.append((heard.pop() * told * 8 / CLIP - 0.5) / TEST_NOISE**2)
        return told

    monkeypatch.setattr(LossOracle, "private_change", overhear)
    ratios = []
    model = Line()
    run = plan_run(model, private, method=observed(method, hear), plan=plan, loss_fn=held_loss, num_classes=2)
    for number in range(num_runs):
        heard.clear()
        model.weights.data.zero_()
        train_in_temporary_folder(run, key=key_of(f"dpsur, {with_target}, {number}"))
        assert len(heard) == 2 * STEPS
        ratios.append(sum(heard))
    monkeypatch.setattr(LossOracle, "private_change", answer)
    return np.array(ratios)


def attacked_runs(monkeypatch: pytest.MonkeyPatch, num_runs: int) -> tuple[float, float]:
    scores = Scores(*(whole_runs(monkeypatch, num_runs, with_target=with_target) for with_target in (True, False)))
    found = bounds.gaussian_tradeoff(scores, threshold=0.0, delta=DELTA)
    return found.epsilon, plan_of(dpsur_method()).bound().epsilon


@pytest.mark.parametrize("num_runs", sizes(100, whole=400))
@pytest.mark.usefixtures("memory_folder")
def test_whole_runs_of_dpsur_stay_below_what_is_charged_and_come_close(
    num_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    certified, charged = attacked_runs(monkeypatch, num_runs)
    assert {100: 0.4, 400: 0.7}[num_runs] * charged <= certified <= charged


@pytest.mark.whole
@pytest.mark.usefixtures("memory_folder")
def test_whole_runs_of_dpsur_with_half_the_noise_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    halve_normals(monkeypatch)
    certified, charged = attacked_runs(monkeypatch, 100)
    assert certified > charged
