"""A small loop as somebody may have it, made private."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lehr.integrations.opacus import PrivacyEngine
from lehr.interfaces import RecordGradients

RECORDS, FEATURES, CLASSES = 40, 6, 3


class Loop(NamedTuple):
    engine: PrivacyEngine
    model: Any
    optimizer: Any
    loader: Any
    criterion: Any = functional.cross_entropy


def records(count: int = RECORDS) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(0, CLASSES, (count,), generator=generator))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def private(
    engine: PrivacyEngine | None = None,
    *,
    model: nn.Module | None = None,
    optimizer: Any = None,
    dataset: Any = None,
    batch_size: int = 8,
    collate_fn: Any = None,
    **options: Any,
) -> Loop:
    """A private loop; with ``target_epsilon`` for two epochs, else with a noise multiplier of 1."""
    engine, model = engine or PrivacyEngine(), model or network()
    make: Any = engine.make_private_with_epsilon if "target_epsilon" in options else engine.make_private
    usual = {"target_delta": 1e-3, "epochs": 2} if "target_epsilon" in options else {"noise_multiplier": 1.0}
    made = make(
        module=model,
        optimizer=optimizer or sgd(model),
        data_loader=DataLoader(dataset or records(), batch_size=batch_size, collate_fn=collate_fn),
        **{"max_grad_norm": 1.0, **usual, **options},
    )
    return Loop(engine, made[0], made[1], made[-1], *made[2:-1])


def seed_everywhere(seed: int) -> None:
    """Seed all global generators, as a program may do in its first lines."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def draw_everywhere() -> tuple[float, float, float]:
    """A number from each kind of global generator."""
    return random.random(), float(np.random.random()), float(torch.rand(()))


def differentiate(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def take_step(loop: Loop, batch: Any) -> None:
    inputs, targets = batch
    loop.optimizer.zero_grad()
    differentiate(loop.criterion(loop.model(inputs), targets))
    loop.optimizer.step()


def take_steps(loop: Loop, count: int) -> None:
    """So many steps, over as many passes as they need."""
    while count:
        for batch in loop.loader:
            take_step(loop, batch)
            count -= 1
            if not count:
                return


def gradients_alone(model: nn.Module, loss_of: Callable[[slice], Tensor], *, count: int) -> list[tuple[Tensor, ...]]:
    """The gradients of each record by itself, from torch."""
    losses = (loss_of(slice(record, record + 1)) for record in range(count))
    return [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]


def assert_same_gradients(found: RecordGradients, expected: Sequence[tuple[Tensor, ...]]) -> None:
    """Norms and weighted sums are those of the gradients of each record by itself."""
    flat = torch.stack([torch.cat([part.flatten() for part in grads]) for grads in expected])
    torch.testing.assert_close(found.norms(), flat.norm(dim=1), rtol=1e-6, atol=0)
    weights = torch.arange(1.0, len(flat) + 1, dtype=torch.float64)
    sums = torch.cat([value.flatten() for value in found.weighted_sum(weights).values()])
    torch.testing.assert_close(sums, weights @ flat, rtol=0, atol=1e-10)


def clipped_mean(
    model: nn.Module, inputs: Tensor, targets: Tensor, *, clip_norm: float, divisor: float
) -> list[Tensor]:
    """Record by record, as a textbook has it."""
    sums = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for grads in gradients_alone(
        model, lambda own: functional.cross_entropy(model(inputs[own]), targets[own]), count=len(inputs)
    ):
        norm = float(torch.cat([grad.flatten() for grad in grads]).norm())
        sums = [total + grad * min(1.0, clip_norm / norm) for total, grad in zip(sums, grads, strict=True)]
    return [total / divisor for total in sums]
