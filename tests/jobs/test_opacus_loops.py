"""Loops of Opacus users: gradient accumulation and Siamese networks. An error names what to use, and that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lehr.errors import InvalidValue
from lehr.integrations.opacus import BatchMemoryManager, PrivacyEngine

DELTA = 1e-4
INTERNALS = re.compile(r"gradients\(\)|forget\(\)|engine is attached|materialised")
criterion = nn.CrossEntropyLoss()


class Loop:
    """The model, optimizer and loader of a user who has called ``make_private``."""

    def __init__(self, *, batch_size: int = 20, **options: Any) -> None:
        records = TensorDataset(torch.randn(100, 4), torch.randint(0, 2, (100,)))
        self.module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.engine = PrivacyEngine()
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.1),
            data_loader=DataLoader(records, batch_size=batch_size),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **options,
        )

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> Any:
        return criterion(self.model(inputs), targets)


def a_step_every_second_batch(loop: Loop) -> None:
    for number, (inputs, targets) in enumerate(loop.loader):
        (loop.loss(inputs, targets) / 2).backward()
        if number % 2:
            loop.optimizer.step()
            loop.optimizer.zero_grad()


def two_parts_of_each_batch(loop: Loop) -> None:
    for inputs, targets in loop.loader:
        for part in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            loop.loss(*part).backward()
        loop.optimizer.step()


def a_step_for_each_part(loop: Loop) -> None:
    for inputs, targets in loop.loader:
        for part in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            loop.optimizer.zero_grad()
            loop.loss(*part).backward()
            loop.optimizer.step()


def two_inputs_at_once(loop: Loop) -> None:
    for inputs, _ in loop.loader:
        loop.optimizer.zero_grad()
        loop.model(torch.cat([inputs, -inputs])).square().mean().backward()
        loop.optimizer.step()


def two_passes(loop: Loop) -> None:
    for inputs, _ in loop.loader:
        loop.optimizer.zero_grad()
        (loop.model(inputs) - loop.model(-inputs)).square().sum(1).mean().backward()
        loop.optimizer.step()


def two_backward_passes(loop: Loop) -> None:
    for inputs, targets in loop.loader:
        loop.optimizer.zero_grad()
        loop.loss(inputs, targets).backward()
        loop.loss(-inputs, targets).backward()
        loop.optimizer.step()


def evaluation_with_gradients(loop: Loop) -> None:
    for inputs, targets in loop.loader:
        loop.optimizer.zero_grad()
        loop.loss(inputs, targets).backward()
        loop.model(torch.zeros(3, 4))
        loop.optimizer.step()


def a_step_without_a_backward_pass(loop: Loop) -> None:
    for inputs, _ in loop.loader:
        loop.model(inputs)
        loop.optimizer.step()


def the_loader_before_make_private(loop: Loop) -> None:
    for inputs, targets in DataLoader(loop.loader.dataset, batch_size=20):
        loop.loss(inputs, targets).backward()
        loop.optimizer.step()


def the_optimizer_before_make_private(loop: Loop) -> None:
    for inputs, targets in loop.loader:
        loop.loss(inputs, targets).backward()
        loop.optimizer.original_optimizer.step()


def the_model_again(loop: Loop) -> None:
    optimizer = torch.optim.SGD(loop.module.parameters(), lr=0.1)
    loop.engine.make_private(
        module=loop.module, optimizer=optimizer, data_loader=loop.loader, noise_multiplier=1.0, max_grad_norm=1.0
    )


@pytest.mark.parametrize(
    "use, way_out",
    [
        (a_step_every_second_batch, "BatchMemoryManager"),
        (two_parts_of_each_batch, "BatchMemoryManager"),
        (a_step_for_each_part, "BatchMemoryManager"),
        (two_passes, "num_passes"),
        (two_inputs_at_once, "num_passes"),
        (two_backward_passes, "num_passes"),
        (evaluation_with_gradients, "no_grad"),
        (a_step_without_a_backward_pass, "backward"),
        (the_loader_before_make_private, "make_private"),
        (the_optimizer_before_make_private, "make_private"),
        (the_model_again, "to_standard_module"),
    ],
)
def test_an_error_of_the_loop_names_the_way_out_and_no_internals(use: Callable[[Loop], None], way_out: str) -> None:
    with pytest.raises(InvalidValue) as error:
        use(Loop())
    assert way_out in error.value.allowed
    assert not INTERNALS.search(str(error.value))


def test_gradient_accumulation_with_batch_memory_manager() -> None:
    loop, num_batches = Loop(batch_size=50), 0
    with BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=10, optimizer=loop.optimizer) as loader:
        for inputs, targets in loader:
            num_batches += 1
            loop.optimizer.zero_grad()
            loop.loss(inputs, targets).backward()
            loop.optimizer.step()
    assert num_batches > 2
    assert sum(steps for *_, steps in loop.engine.accountant.history) == 2
    assert 0 < loop.engine.get_epsilon(DELTA) < float("inf")


def test_a_siamese_network_with_num_passes() -> None:
    loop = Loop(num_passes=2)
    two_passes(loop)
    assert sum(steps for *_, steps in loop.engine.accountant.history) == 5
