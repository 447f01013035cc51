"""What acceptance is told about private records: how much noise there is, and how far one record can move the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from lehr.acceptance.proposal import Energy, PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Event,
    Gaussian,
    PoissonSampled,
    PureDP,
    SampledWithoutReplacement,
)
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import Tensors
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.loss_oracle import LossOracle, _laplace, best_public, event_of, losses_of_each

KEY = RunKey(bytes(range(32)))
ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
CLIP = 0.5
ASKED = 600
TINY = 1e-9  # noise that does not hide what is under it


class Chosen(nn.Module):
    """Each record holds its own loss at two sets of weights, (1, 0) and (0, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.which = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        held = torch.where(self.which > 0, inputs, torch.zeros_like(inputs))
        return held.sum(dim=1)


BEFORE: Tensors = {"which": torch.tensor([1.0, 0.0])}
AFTER: Tensors = {"which": torch.tensor([0.0, 1.0])}


def held_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs + 0 * targets


@dataclass(frozen=True, kw_only=True, eq=False)
class Remembering(LossOracle):
    """Looks at a draw once, however often it is asked: what is measured is the noise."""

    seen: dict[object, Tensor] = field(default_factory=dict)

    def _losses(self, weights: Tensors, places: Tensor) -> Tensor:
        looked_at = (id(weights), tuple(places.tolist()))
        if looked_at not in self.seen:
            self.seen[looked_at] = super()._losses(weights, places)
        return self.seen[looked_at]


def judge(energy: Energy, losses: list[tuple[float, float]], *, records: int, adjacency: Adjacency = ADD) -> LossOracle:
    """Of records with these losses before and after."""
    asked = event_of(energy, records=records, adjacency=adjacency)
    numbers = {"noise_multiplier": 1.0, "expected_batch_size": 1, "records": records, "steps": 1, "delta": 1e-5}
    plan = Plan(**numbers, adjacency=adjacency, asked=asked)  # type: ignore[arg-type]
    inputs = torch.tensor(losses, dtype=torch.float64).reshape(-1, 2)
    return Remembering(
        energy=energy,
        plan=plan,
        model=Chosen(),
        loss_fn=held_loss,
        prepare=lambda given: given,
        private=InMemory(inputs, torch.zeros(len(inputs))),
        public=None,
    )


def private(
    clipped: Literal["records", "batch"], *, noise_multiplier: float, expected_batch_size: float
) -> PrivateEnergy:
    return PrivateEnergy(
        loss_clip=CLIP, noise_multiplier=noise_multiplier, expected_batch_size=expected_batch_size, clipped=clipped
    )


def change(given: LossOracle, step: int = 0) -> float:
    return given.private_change(BEFORE, AFTER, KEY.at(step, 0))


every_clip = pytest.mark.parametrize("clipped", ["records", "batch"])
both = pytest.mark.parametrize("adjacency", [ADD, REPLACE], ids=["add or remove", "replace"])

EVENTS: list[tuple[Energy | None, Adjacency, Event]] = [
    (None, ADD, NOTHING),
    (PublicEnergy(), ADD, NOTHING),
    (private("records", noise_multiplier=2.0, expected_batch_size=20), ADD, PoissonSampled(0.2, Gaussian(2.0))),
    (private("batch", noise_multiplier=2.0, expected_batch_size=20), ADD, PoissonSampled(0.2, Gaussian(2.0))),
    (
        private("records", noise_multiplier=2.0, expected_batch_size=20),
        REPLACE,
        SampledWithoutReplacement(100, 20, Gaussian(2.0)),
    ),
    (PrivateChoice(loss_clip=1.0, epsilon=0.5), ADD, PureDP(0.5)),
]


@pytest.mark.parametrize("energy, adjacency, event", EVENTS, ids=str)
def test_event_of_a_query(energy: Energy | None, adjacency: Adjacency, event: Event) -> None:
    assert event_of(energy, records=100, adjacency=adjacency) == event


@both
def test_choice_on_a_draw_costs_less(adjacency: Adjacency) -> None:
    energy = PrivateChoice(loss_clip=1.0, epsilon=0.5, expected_batch_size=10)
    charged = event_of(energy, records=100, adjacency=adjacency)
    assert isinstance(charged, PureDP)
    assert math.exp(charged.epsilon) == pytest.approx(1 + 0.1 * (math.exp(0.5) - 1))


def test_query_of_more_than_all_records() -> None:
    energy = private("records", noise_multiplier=1.0, expected_batch_size=101)
    with pytest.raises(InvalidValue, match="at most the 100 records"):
        event_of(energy, records=100, adjacency=ADD)


@every_clip
@both
def test_noise_of_a_query(clipped: Any, adjacency: Adjacency) -> None:
    energy = private(clipped, noise_multiplier=3.0, expected_batch_size=1)
    given = judge(energy, [(0.0, 0.0)], records=1, adjacency=adjacency)
    told = torch.tensor([change(given, step) for step in range(ASKED)], dtype=torch.float64)
    moved = CLIP if (clipped, adjacency) == ("records", ADD) else 2 * CLIP  # between neighbours
    assert abs(float(told.mean())) < 5 * 3.0 * moved / math.sqrt(ASKED)
    assert float(told.std()) == pytest.approx(3.0 * moved, rel=0.12)
    assert float(told.std()) != pytest.approx(2.0 * moved, rel=0.12)


EXTREMES = [0.0, 1e300, -1e300, math.inf, -math.inf, math.nan]


@every_clip
def test_sensitivity_of_a_query(clipped: Any) -> None:
    energy = private(clipped, noise_multiplier=TINY, expected_batch_size=2)
    divisor, moved = (2.0, CLIP) if clipped == "records" else (1.0, 2 * CLIP)
    largest = 0.0
    for others in ([], [(0.0, -9.0)], [(0.0, 0.1)]):
        alone = change(judge(energy, others, records=2))
        for before in EXTREMES:
            for after in EXTREMES:
                together = change(judge(energy, [*others, (before, after)], records=2))
                assert math.isfinite(together)
                largest = max(largest, divisor * abs(together - alone))
    assert largest == pytest.approx(moved, rel=1e-6)  # and an adversary comes that far


@every_clip
def test_infinite_losses_of_both_signs(clipped: Any) -> None:
    """Their sum is no number; told as it is, with noise or without, that would say who is there."""
    lost = [(math.inf, 0.0), (math.inf, 0.0), (0.0, math.inf)]
    told = change(judge(private(clipped, noise_multiplier=TINY, expected_batch_size=3), lost, records=3))
    assert abs(told) <= CLIP * (1 + 1e-6)


def test_answer_is_divided_by_a_public_number() -> None:
    losses = [(1.0, 1.25), (1.0, 0.0), (0.0, 9.0), (2.0, 1.9)]
    given = judge(private("records", noise_multiplier=TINY, expected_batch_size=5), losses, records=5)
    assert change(given) == pytest.approx((0.25 - CLIP + CLIP - 0.1) / 5, abs=1e-6)
    given = judge(private("batch", noise_multiplier=TINY, expected_batch_size=5), losses[:2], records=5)
    assert change(given) == pytest.approx(-0.375, abs=1e-6)


@every_clip
def test_empty_draw_is_answered_with_noise(clipped: Any) -> None:
    given = judge(private(clipped, noise_multiplier=1.0, expected_batch_size=1), [], records=10)
    assert change(given) != 0
    assert math.isfinite(change(given))
    assert given._losses(BEFORE, torch.arange(0)).shape == (0,)  # the model is not called with nobody
    choice = judge(PrivateChoice(loss_clip=1.0, epsilon=1.0), [], records=10)
    assert choice.private_choice([BEFORE, AFTER], KEY.at(0, 0)) in (0, 1)


@dataclass(frozen=True)
class Noting(InMemory):
    """Notes who was looked at."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "looked_at", [])

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        self.looked_at.append(indices_B)  # type: ignore[attr-defined]
        return super().batch(indices_B)


def test_query_has_its_own_draw_and_noise() -> None:
    steps, held = 60, 40
    given = judge(private("records", noise_multiplier=1.0, expected_batch_size=20), [(0.0, 0.0)] * held, records=held)
    noting = Noting(given.private.inputs, given.private.targets)  # type: ignore[attr-defined]
    object.__setattr__(given, "private", noting)
    asked, trained = torch.zeros(2, steps, held)
    for step in range(steps):
        told = change(given, step)
        # The same draw answers for the weights before and after.
        after, before = noting.looked_at[-2:]  # type: ignore[attr-defined]
        assert torch.equal(after, before)
        asked[step, after] = 1
        trained[step, PoissonSampling(expected_batch_size=20, records=held).draw(held, KEY.at(step, 0))] = 1
        noise = KEY.at(step, 0).normals("noise", {"change": torch.zeros(())})["change"]
        assert told * 20 / CLIP != pytest.approx(float(noise))
    correlation = torch.corrcoef(torch.stack([asked.flatten(), trained.flatten()]))[0, 1]
    assert abs(float(correlation)) < 5 / math.sqrt(steps * held)
    assert 0.4 < float(asked.mean()) < 0.6


class Along(nn.Linear):
    """Mixes records."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * inputs.mean(dim=0, keepdim=True).sum()


@pytest.mark.parametrize(
    "model, loss",
    [
        pytest.param(Along(2, 1), lambda outputs, targets: outputs[:, 0], id="model"),
        pytest.param(nn.Linear(2, 1), lambda outputs, targets: outputs[:, 0] * outputs.mean() * 50, id="loss"),
        pytest.param(nn.Linear(2, 1), lambda outputs, targets: outputs[:, 0] - outputs.amax(), id="largest"),
    ],
)
def test_losses_are_computed_per_record(model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    inputs, targets = torch.tensor([[1.0, 2.0], [3.0, -1.0], [50.0, 50.0]]), torch.zeros(3)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    found = losses_of_each(model, weights, loss, inputs, targets)
    torch.testing.assert_close(losses_of_each(model, weights, loss, inputs[:2], targets[:2]), found[:2])
    with torch.no_grad():
        alone = [float(loss(model(inputs[k : k + 1]), targets[k : k + 1])) for k in range(3)]
    assert found.tolist() == pytest.approx(alone, rel=1e-5)
    assert found.dtype == torch.float64


class Recurrent(nn.Module):
    """torch cannot vectorise it over records."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        last: Tensor = self.last(self.cells(inputs)[0][:, -1])
        return last * inputs.mean()  # and it looks along the batch


def test_layers_without_vmap() -> None:
    torch.manual_seed(0)
    model, inputs, targets = Recurrent(), torch.randn(3, 5, 3), torch.zeros(3)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    with torch.no_grad():
        found = losses_of_each(model, weights, lambda outputs, targets: outputs[:, 0], inputs, targets)
        alone = [float(model(inputs[k : k + 1])) for k in range(3)]
    assert found.tolist() == pytest.approx(alone, rel=1e-5)


def test_error_of_the_loss() -> None:
    def unfit(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs @ torch.zeros(7, 1)

    with pytest.raises(RuntimeError, match=r"size mismatch|cannot be multiplied"):
        losses_of_each(nn.Linear(2, 1), {}, unfit, torch.zeros(3, 2), torch.zeros(3))


def frequency(losses: list[tuple[float, float]], *, epsilon: float, adjacency: Adjacency, times: int = 2500) -> float:
    """How often the second of two candidates is chosen."""
    energy = PrivateChoice(loss_clip=1.0, epsilon=epsilon)
    given = judge(energy, losses, records=max(1, len(losses)), adjacency=adjacency)
    return sum(given.private_choice([BEFORE, AFTER], KEY.at(step, 0)) for step in range(times)) / times


def law(moved: float) -> float:
    """How often Laplace noise of scale one, on both sides, turns round a difference of so many scales."""
    return (1 + moved / 2) * math.exp(-moved) / 2


def test_audit_of_a_private_choice() -> None:
    against, error = (0.0, 9.0), 0.03  # as much against the second candidate as a clip lets it be
    without = frequency([], epsilon=1.0, adjacency=ADD)
    with_it = frequency([against], epsilon=1.0, adjacency=ADD)
    assert without == pytest.approx(0.5, abs=error)
    assert with_it == pytest.approx(law(1.0), abs=error)
    assert (without - error) / (with_it + error) <= math.e
    halved = frequency([against], epsilon=2.0, adjacency=ADD)
    assert (without - error) / (halved + error) > math.e


def test_choice_under_replace_one_has_twice_the_noise() -> None:
    against = frequency([(0.0, 9.0)], epsilon=1.0, adjacency=REPLACE)
    assert against == pytest.approx(law(0.5), abs=0.03)
    assert against != pytest.approx(law(1.0), abs=0.03)


def test_choice_clips_losses() -> None:
    energy = PrivateChoice(loss_clip=1.0, epsilon=1e9)
    for losses, best in [
        ([(0.5, 0.4)], 1),
        ([(0.5, math.nan)], 0),
        ([(math.inf, 0.9)], 1),
        ([(0.2, -1e9), (0.0, 0.5)], 0),  # below nothing there is nothing to gain
        ([(0.2, 0.0), (0.0, 1e9)], 0),
    ]:
        given = judge(energy, losses, records=2)
        assert given.private_choice([BEFORE, AFTER], KEY.at(0, 0)) == best


def test_laplace_noise() -> None:
    drawn = _laplace(KEY.at(0, 0).uniforms("choice", 100_000))
    assert bool(drawn.isfinite().all())
    assert float(drawn.abs().mean()) == pytest.approx(1.0, rel=0.02)
    assert float((drawn > math.log(4)).double().mean()) == pytest.approx(1 / 8, rel=0.05)
    assert float((drawn < 0).double().mean()) == pytest.approx(0.5, abs=0.01)


def test_best_public_loss_is_finite() -> None:
    assert best_public([3.0, math.nan, 1.0, -math.inf, 2.0]) == 2
    assert best_public([math.nan, math.inf]) == 0
