"""The engine of a run: the size of its physical batches, and what happens where a step cannot be compiled."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.errors import InvalidValue, NotPrivate
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.training.engines import (
    LARGEST_PHYSICAL_BATCH,
    _work,
    engine_for,
    is_worth_compiling,
    physical_batch_for,
)
from tests.gradients.one_by_one import OneByOneEngine
from tests.training.tiny import PRIVATE, linear

CPU = torch.device("cpu")
CLIP = FlatClip(0.5)


def padded_fraction(given: Plan, size: int) -> float:
    """The share of records in physical batches of this size that are padding, on average."""
    return 1 - given.expected_batch_size / _work(given.expected_batch_size, size, own_cost=0)


def plan(*, batch: float, records: int = 60_000, steps: int = 100) -> Plan:
    return Plan(noise_multiplier=1.0, expected_batch_size=batch, records=records, steps=steps, delta=1e-5)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def losses_with_a_word(outputs: Tensor, targets: Tensor) -> Tensor:
    """As ``losses``; the standard output cannot be part of a compiled graph."""
    print(end="")  # noqa: T201
    return losses(outputs, targets)


def made(loss_fn: Any = losses, *, model: nn.Module | None = None, compiled: bool = False, **said: Any) -> Any:
    padding = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    settings = {"views": 1, "precision": "as_model", "clipping": CLIP, "padding": padding, **said}
    return engine_for(model or linear(), loss_fn, compiled=compiled, **settings)


@pytest.mark.parametrize("batch", [0.5, 1, 8, 64, 200, 2048, 20_000])
def test_a_physical_batch_is_positive_bounded_and_a_multiple_of_eight(batch: float) -> None:
    size = physical_batch_for(plan(batch=batch), CPU)
    assert 8 <= size <= LARGEST_PHYSICAL_BATCH
    assert size % 8 == 0


def test_little_is_padded_at_the_batch_of_the_papers() -> None:
    large = plan(batch=2048)
    assert 0 < padded_fraction(large, physical_batch_for(large, CPU)) < 0.08


def test_the_padded_fraction_is_that_of_drawn_batches() -> None:
    drawn = np.random.default_rng(0).binomial(60_000, 64 / 60_000, size=40_000)
    run = np.maximum(1, np.ceil(drawn / 24)) * 24
    assert padded_fraction(plan(batch=64), 24) == pytest.approx(1 - drawn.mean() / run.mean(), abs=0.005)


def test_a_batch_of_one_record_at_a_time_is_hardly_padded() -> None:
    assert padded_fraction(plan(batch=200), 1) == pytest.approx(0, abs=1e-4)


def test_a_gpu_takes_larger_batches_at_once() -> None:
    large = plan(batch=2048)
    assert physical_batch_for(large, torch.device("cuda")) >= physical_batch_for(large, CPU)


def test_only_long_runs_are_worth_compiling() -> None:
    assert is_worth_compiling(plan(batch=2048, steps=1000), CLIP)
    assert not is_worth_compiling(plan(batch=8, steps=100), CLIP)


def test_an_engine_that_is_not_compiled_says_so_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, runs = made()
    assert runs == "not compiled"


def test_where_a_step_cannot_be_compiled_it_runs_as_it_is_and_the_reason_is_told() -> None:
    with pytest.warns(UserWarning, match=r"the step is not compiled, and slower: \S+"):
        engine, runs = made(losses_with_a_word, compiled=True)
    assert runs == "not compiled"
    plain, _ = made()
    inputs, targets = PRIVATE[0][:4], PRIVATE[1][:4]
    mask = torch.tensor([True, True, False, True])
    got, want = (each.private_sum(CLIP, inputs, targets, mask).values for each in (engine, plain))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_that_cannot_be_private_is_refused_and_not_run_some_other_way(compiled: bool) -> None:
    with pytest.raises(NotPrivate, match="BatchNorm2d"):
        made(model=nn.Sequential(nn.BatchNorm2d(1), *linear()), compiled=compiled)


def test_a_loss_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"loss_fn must be .*one loss per record"):
        made(cross_entropy)


class Spoilt(nn.Module):
    """Right outputs, and gradients that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layer(images.flatten(1))
        return outputs + (outputs - outputs.detach()).abs().sqrt()  # of zero, with a slope that is infinite


def test_a_model_whose_gradients_are_not_finite_is_told_before_anything_is_spent() -> None:
    with pytest.warns(UserWarning, match="all zero or not finite"):
        made(model=Spoilt())


class Mixing(nn.Module):
    """Does something to the whole batch, from four records on, before a linear layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, linear()

    def forward(self, images: Tensor) -> Tensor:
        if self.kind == "centred" and images.shape[0] >= 4:
            images = images - images.mean(0)
        if self.kind == "sorted":
            order = images.flatten(1).sum(1).argsort()
            return self.layer(images[order])[order.argsort()]  # type: ignore[no-any-return]
        if self.kind == "branching" and images.mean() > 3:
            images = images - images.mean(0)
        return self.layer(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["centred", "sorted", "branching"])
def test_a_model_that_mixes_its_batch_does_not_let_one_record_move_the_sum_by_more_than_is_stated(kind: str) -> None:
    engine, _ = made(model=Mixing(kind), clipping=FlatClip(1e-2))
    images, labels = PRIVATE[0][:4].clone(), PRIVATE[1][:4]
    images[0] *= 1000
    everyone, one_less = torch.ones(4, dtype=torch.bool), torch.tensor([False, True, True, True])
    without = images.clone()
    without[0] = 0  # as padding does
    sums = [
        engine.private_sum(FlatClip(1e-2), images, labels, everyone),
        engine.private_sum(FlatClip(1e-2), without, labels, one_less),
    ]
    moved = sum(float((sums[0].values[name] - sums[1].values[name]).square().sum()) for name in sums[0].values) ** 0.5
    assert moved <= sums[0].sensitivity * (1 + 1e-5)


class Reads(nn.Module):
    """A recurrent layer over the rows of an image."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cell(images.squeeze(1))[0].mean(1))
        return outputs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_recurrent_model_has_its_gradients_formed_in_full(kind: Any, compiled: bool) -> None:
    model = Reads(kind)
    engine, how = made(model=model, compiled=compiled)
    assert how == "in full, not compiled"
    batch = torch.randn(4, 1, 4, 4), torch.arange(4) % 3
    expected = CLIP(OneByOneEngine(model, losses).gradients(*batch)).values
    found = engine.private_sum(CLIP, *batch).values
    assert all(torch.allclose(found[name], value, atol=1e-5) for name, value in expected.items())


def test_a_model_that_needs_its_gradients_in_full_runs_in_its_own_precision() -> None:
    with pytest.raises(InvalidValue, match="precision must be as_model"):
        made(model=Reads(nn.GRU), precision="bfloat16")
