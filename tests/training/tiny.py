"""A few made-up images and a model that learns them in no time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lehr import fit
from lehr.planning.budget import Budget
from lehr.training.ending import Run

HELD = 48  # records; runs state another number
STATED = 40
SIDE = 4


def images(count: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Images whose brightest quarter tells their class, of three."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    pictures = torch.rand(count, 1, SIDE, SIDE, generator=generator) / 2
    pictures[torch.arange(count), 0, labels] += 0.5
    return pictures, labels


PRIVATE, TEST, PUBLIC = images(HELD, seed=1), images(24, seed=2), images(12, seed=3)


def linear(*, outputs: int = 3) -> nn.Sequential:
    """The same first weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, outputs))


def fit_tiny(directory: Path, **changed: Any) -> Run:
    """Five steps on the tiny images, changed as said."""
    said: dict[str, Any] = {
        "data": PRIVATE,
        "test": TEST,
        "records": STATED,
        "num_classes": 3,
        "delta": 1e-3,
        "noise_multiplier": 1.0,
        "steps": 5,
        "expected_batch_size": 8,
        "compiled": False,
        "quiet": True,
        **changed,
    }
    return fit(said.pop("model", None) or linear(), said.pop("data"), directory=directory, **said)


def new_budget(path: Path, *, epsilon: float = 20.0) -> Path:
    """The budget of the tiny images."""
    Budget.create(path, dataset="tiny images", epsilon=epsilon, delta=1e-3).close()
    return path
