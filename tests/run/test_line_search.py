"""The weights along one released sum: moved to, asked about, and gone back from without a trace."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Energy, PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, StepOutcome
from lehr.optim.averaging import NoAverage
from lehr.optim.optimizers import adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import PublicScore
from lehr.run.line_search import LineSearch
from lehr.run.loss_oracle import LossOracle, event_of
from lehr.run.mechanism import Method
from lehr.run.train_state import TrainState

KEY = RunKey(bytes(range(32)))
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=4, records=6, steps=9, delta=1e-5)
RECORDS = InMemory(torch.linspace(-1, 1, 18, dtype=torch.float64).view(6, 3), torch.arange(6) % 2)
PRIVATE = PrivateEnergy(loss_clip=0.5, noise_multiplier=1.0, expected_batch_size=6)
CHOICE = PrivateChoice(loss_clip=4.0, epsilon=1e9)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def trainee(**changed: Any) -> TrainState:
    """After one step, so that there is momentum to lose."""
    update = changed.pop("update", None) or sgd(0.5, momentum=0.9)
    method = Method(
        name="test", clipping=FlatClip(1.0), noise=IsotropicNoise(), update=update, acceptance=Annealed(), **changed
    )
    made = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    given = TrainState(made, method, NoAverage())
    given.propose(released(0), divisor=4.0, step=0)
    given.end_step(StepOutcome(released=released(0), divisor=4.0, is_accepted=True))
    return given


def released(seed: int) -> ReleasedSum:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"weight": (2, 3), "bias": (2,)}
    values = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    return ReleasedSum(values=values, noise_std=1.0, noise_multiplier=1.0)


def candidates(
    given: TrainState,
    energy: Energy | None = None,
    *,
    energy_now: float | None = None,
    loss_fn: Callable[[Tensor, Tensor], Tensor] = losses,
) -> LineSearch:
    def prepare(inputs: Any) -> Any:
        return inputs

    asked = event_of(energy, records=PLAN.records, adjacency=PLAN.adjacency)
    judge = LossOracle(
        energy=energy or PublicEnergy(),
        plan=replace(PLAN, asked=asked),
        model=given.model,
        loss_fn=loss_fn,
        prepare=prepare,
        private=RECORDS,
        public=PublicScore(records=RECORDS, loss_fn=loss_fn, prepare=prepare),
    )
    randomness = KEY.at(1, 0)
    return LineSearch(given, judge, released(1), divisor=4.0, step=1, randomness=randomness, energy_now=energy_now)


def state(given: TrainState) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in given.checkpoint().tensors.items()}


def is_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def mean_loss(given: TrainState) -> float:
    with torch.no_grad():
        return float(losses(given.model(RECORDS.inputs), RECORDS.targets).mean())


every_update = pytest.mark.parametrize("update", [sgd(0.5, momentum=0.9), adam(0.1)], ids=["momentum", "adam"])


@every_update
def test_rejection_restores_everything(update: Any) -> None:
    given = trainee(update=update)
    before = state(given)
    made = candidates(given)
    made.change()
    assert not is_same(state(given), before)
    made.best([0.5, 2.0])
    made.take(0.0)
    assert is_same(state(given), before)


@every_update
def test_rejection_that_keeps_momentum(update: Any) -> None:
    given, straight = trainee(update=update), trainee(update=update)
    weights = {name: value.clone() for name, value in given.model.state_dict().items()}
    made = candidates(given)
    made.best([0.5, 2.0])
    made.take(0.0, keeps_momentum=True)
    straight.propose(released(1), divisor=4.0, step=1)
    assert all(torch.equal(value, weights[name]) for name, value in given.model.state_dict().items())
    found, expected = state(given), state(straight)
    kept = [name for name in found if not name.startswith("model/")]
    assert kept
    assert all(torch.equal(found[name], expected[name]) for name in kept)


@every_update
@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_step_does_not_depend_on_earlier_queries(update: Any, scale: float) -> None:
    given, straight = trainee(update=update), trainee(update=update)
    made = candidates(given)
    made.best([2.0, 0.5, 0.0, 1.0])
    made.take(scale)
    straight.propose(released(1), divisor=4.0, step=1, step_scale=scale)
    assert is_same(state(given), state(straight))


def test_public_change() -> None:
    given = trainee()
    made, now = candidates(given), mean_loss(given)
    straight = trainee()
    straight.propose(released(1), divisor=4.0, step=1)
    assert made.change() == made.change() == pytest.approx(mean_loss(straight) - now)
    assert made.change(0.0) == 0.0


def test_energy_is_computed_once() -> None:
    calls: list[int] = []

    def counting(outputs: Tensor, targets: Tensor) -> Tensor:
        calls.append(1)
        return losses(outputs, targets)

    made = candidates(trainee(), energy_now=0.25, loss_fn=counting)
    change = made.change()
    assert len(calls) == 1
    assert made.take(1.0) == pytest.approx(0.25 + change)
    assert made.take(0.0) == 0.25
    assert candidates(trainee(), PRIVATE).take(1.0) is None


@pytest.mark.parametrize(
    "now, proposed, change",
    [
        (1.0, math.nan, math.inf),
        (1.0, math.inf, math.inf),
        (1.0, -math.inf, math.inf),
        (math.nan, 1.0, -math.inf),
        (math.inf, 1.0, -math.inf),
        (math.nan, math.nan, math.inf),
        (-1e308, 1e308, sys.float_info.max),
        (1e308, -1e308, -sys.float_info.max),
    ],
)
def test_energies_that_are_not_finite(now: float, proposed: float, change: float) -> None:
    made = candidates(trainee(), energy_now=now)
    made._known[1.0] = proposed  # what such a model would give
    assert made.change() == change


@pytest.mark.parametrize("energy", [PRIVATE, CHOICE], ids=["change", "choice"])
def test_one_private_query_per_released_sum(energy: Energy) -> None:
    """A second answer, at another step size, would have the same noise: the difference would have none."""
    made = candidates(trainee(), energy)

    def ask(scale: float) -> None:
        made.change(scale) if energy is PRIVATE else made.best([0.0, scale])

    ask(1.0)
    with pytest.raises(InvalidValue, match="asks private records once a candidate"):
        ask(2.0)
    candidates(trainee(), energy).take(1.0)  # not to ask is allowed; it is charged all the same


def test_noise_of_a_private_change() -> None:
    given = trainee()
    with torch.no_grad():
        before = losses(given.model(RECORDS.inputs), RECORDS.targets)
    straight = trainee()
    straight.propose(released(1), divisor=4.0, step=1)
    with torch.no_grad():
        after = losses(straight.model(RECORDS.inputs), RECORDS.targets)
    noise = KEY.at(1, 0).normals("energy", {"change": torch.zeros(())})["change"]
    expected = ((after - before).clamp(-0.5, 0.5).sum() + 0.5 * noise) / 6
    assert candidates(given, PRIVATE).change() == pytest.approx(float(expected))


def test_private_choice_with_little_noise() -> None:
    scales = [0.0, 0.5, 1.0, 2.0, 40.0]
    found = []
    for scale in scales:
        straight = trainee()
        straight.propose(released(1), divisor=4.0, step=1, step_scale=scale)
        found.append(mean_loss(straight))
    assert candidates(trainee(), CHOICE).best(scales) == found.index(min(found))
    assert candidates(trainee(), PublicEnergy()).best(scales) == found.index(min(found))


def test_uniform_number_of_a_step() -> None:
    made = candidates(trainee())
    assert made.uniform() == made.uniform() == float(KEY.at(1, 0).uniforms("acceptance", 1))


@pytest.mark.parametrize("energy", [PublicEnergy(), PRIVATE], ids=["public", "private"])
def test_queries_use_evaluation_mode(energy: Energy) -> None:
    given, modes = trainee(), []
    given.model.train()
    given.model.register_forward_hook(lambda module, args, output: modes.append(module.training))
    candidates(given, energy).change()
    assert modes
    assert not any(modes)
    assert given.model.training
