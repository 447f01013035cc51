"""The model and all that goes on beside it: saved and restored to the bit, and refused where it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.rules import Salvage
from lehr.errors import DamagedFile, Diverged
from lehr.interfaces import ReleasedSum, StepOutcome
from lehr.optim.averaging import ExponentialAverage, NoAverage
from lehr.optim.optimizers import adam, sgd
from lehr.privacy.clipping import AdaptiveClip, FlatClip, ReleasedPrior
from lehr.privacy.noise import IsotropicNoise, OptimisedNoise
from lehr.privacy.rng import RunKey
from lehr.run import checkpoint
from lehr.run.mechanism import Method
from lehr.run.train_state import TrainState, evaluating
from tests.acceptance.proposed import Proposed

KEY = RunKey(bytes(range(32)))


def trainee(outputs: int = 2, *, uses_adam: bool = True, averages: bool = True) -> TrainState:
    torch.manual_seed(0)
    method = Method(
        name="test",
        clipping=FlatClip(1.0),
        noise=IsotropicNoise(),
        update=adam(0.1) if uses_adam else sgd(0.1, momentum=0.9),
        acceptance=Annealed(),
    )
    averaging = ExponentialAverage(decay=0.9) if averages else NoAverage()
    return TrainState(nn.Linear(3, outputs), method, averaging)


def step(given: TrainState, number: int) -> None:
    torch.manual_seed(number)
    values = {name: torch.randn_like(value) for name, value in given.model.named_parameters()}
    released = ReleasedSum(values=values, noise_std=1.0, noise_multiplier=1.0)
    given.propose(released, divisor=4.0, step=number)
    given.end_step(StepOutcome(released=released, divisor=4.0, is_accepted=True))


def test_restored_state_continues_bit_for_bit(tmp_path: Path) -> None:
    whole, first, second = trainee(), trainee(), trainee()
    for number in range(6):
        step(whole, number)
    for number in range(3):
        step(first, number)
    checkpoint.write(tmp_path, first.checkpoint(), KEY)
    found = checkpoint.latest(tmp_path, KEY)
    assert found is not None
    second.load(found)
    for number in range(3, 6):
        step(second, number)
    assert (second.step, second.accepted) == (6, 6)
    assert all(torch.equal(value, second.weights()[name]) for name, value in whole.weights().items())
    assert whole.checkpoint().numbers == second.checkpoint().numbers


def test_undone_candidate() -> None:
    given, untouched = trainee(), trainee()
    for each in (given, untouched):
        step(each, 0)
    before = given.snapshot()
    ones = {name: torch.ones_like(value) for name, value in given.model.named_parameters()}
    given.propose(ReleasedSum(values=ones), divisor=1.0, step=1)
    given.go_back(before)
    for each in (given, untouched):
        step(each, 1)
    assert all(torch.equal(value, untouched.weights()[name]) for name, value in given.weights().items())


@pytest.mark.parametrize(
    "other", [{"outputs": 3}, {"uses_adam": False}, {"averages": False}], ids=["model", "optimizer", "averaging"]
)
def test_checkpoint_of_another_model(other: dict[str, bool]) -> None:
    given, another = trainee(), trainee(**other)
    step(another, 0)
    with pytest.raises(DamagedFile, match="another model or method"):
        given.load(another.checkpoint())


def test_non_finite_weights_are_not_saved() -> None:
    given = trainee()
    with torch.no_grad():
        next(given.model.parameters()).fill_(float("nan"))
    with pytest.raises(Diverged, match="weight"):
        given.checkpoint()


def test_evaluating_restores_every_layer() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout()))
    model[1].eval()
    with evaluating(model):
        assert not any(layer.training for layer in model.modules())
    assert [layer.training for layer in model.modules()] == [True, True, False, False]


def salvaging() -> TrainState:
    torch.manual_seed(0)
    method = Method(
        name="test",
        clipping=AdaptiveClip(clip_norm=1.0, prior=ReleasedPrior()),
        noise=OptimisedNoise(),
        update=adam(0.1),
        acceptance=Salvage(Annealed(initial_inverse_temperature=1e9, cooling="floored")),
    )
    return TrainState(nn.Linear(3, 2), method, NoAverage())


def rejected(given: TrainState, number: int) -> None:
    """A step whose candidate is refused: what was released is all that is left of it."""
    torch.manual_seed(number)
    values = {name: torch.randn_like(value) for name, value in given.model.named_parameters()}
    std = {name: torch.ones_like(value) for name, value in values.items()}
    released = ReleasedSum(values=values, noise_std=std, noise_multiplier=1.0)
    given.decides(Proposed(now=1.0, proposed=2.0, drawn=0.9), given.combined(released))
    given.end_step(StepOutcome(released=released, divisor=4.0, is_accepted=False))


def test_checkpoint_has_the_state_of_components(tmp_path: Path) -> None:
    whole, first, second = salvaging(), salvaging(), salvaging()
    rejected(first, 0)
    checkpoint.write(tmp_path, first.checkpoint(), KEY)
    found = checkpoint.latest(tmp_path, KEY)
    assert found is not None
    second.load(found)
    rejected(second, 1)
    for number in range(2):
        rejected(whole, number)
    assert (second.step, second.accepted) == (2, 0)
    names = whole.checkpoint().tensors
    assert {"clipping", "noise", "acceptance"} <= {name.split("/")[0] for name in names}
    assert any(name.startswith("acceptance/carried/") for name in names)
    assert any(name.startswith("acceptance/carried_std/") for name in names)
    assert all(torch.equal(value, second.checkpoint().tensors[name]) for name, value in names.items())
    assert whole.checkpoint().numbers == second.checkpoint().numbers


def test_checkpoint_without_the_state_of_a_component() -> None:
    whole, another = salvaging().checkpoint(), salvaging()
    for slot in ("clipping", "acceptance"):
        numbers = {**whole.numbers, "slots": {**whole.numbers["slots"], slot: {}}}
        tensors = {name: value for name, value in whole.tensors.items() if not name.startswith(f"{slot}/")}
        with pytest.raises(DamagedFile, match=f"of {slot}"):
            another.load(replace(whole, numbers=numbers, tensors=tensors))
