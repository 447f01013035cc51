"""Norms of records' gradients before clipping, and of the first layer's activations, while a network trains.

After Figures 4 and 5 of Papernot et al. (2021). Such norms are private values, and this looks at them: it can, because
the data sets with a name are public. On records that must be protected, never do this; the ε covers the weights and not
the norms.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.data import DataSet, load
from lehr.gradients.ghost import GhostEngine
from lehr.methods.by_name import named
from lehr.networks import build
from lehr.networks.by_name import default_for
from lehr.run_shape import Callback, Progress
from lehr.training.ending import Run
from lehr.training.fit import a_device, fit

WATCHED = 256  # records
_losses = partial(cross_entropy, reduction="none")


@dataclass
class Watch(Callback):
    """The norms of some records at the weights that a model has now and then, as means over the records."""

    model: nn.Sequential
    inputs: Tensor
    targets: Tensor
    every: int
    clip_norm: float
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._engine = GhostEngine(self.model, _losses, compiled=False)
        self._look(0)

    def stepped(self, progress: Progress) -> None:
        if progress.step % self.every == 0:
            self._look(progress.step)

    def _look(self, step: int) -> None:
        norms = self._engine.gradients(self.inputs, self.targets).norms()
        with torch.no_grad():
            activations = self.model[:2](self.inputs).flatten(1).norm(dim=1)  # behind the first activation
        row = {
            "step": step,
            "gradient_norm": norms.mean().item(),
            "activation_norm": activations.mean().item(),
            "share_cut": norms.gt(self.clip_norm).float().mean().item(),
        }
        self.rows.append(row)


def norms_of_training(
    *,
    device: str | None,
    data_dir: str | Path | None,
    data: str,
    activation: str,
    batch: int,
    steps: int,
    learning_rate: float,
    clip_norm: float,
    noise_multiplier: float | None,
    seed: int,
    looks: int = 100,
) -> dict[str, Any]:
    """What was seen while a network trained with DPSGD, or without noise and clip where there is no noise multiplier.

    Neither has momentum, so that both take the same step: the mean of gradients, or that of clipped ones with noise.
    """
    known, where = load(data, data_dir), a_device(device)
    model = _first_weights(known, activation, seed).to(where)
    inputs, targets = known.train.inputs[:WATCHED], known.train.targets[:WATCHED]
    watch = Watch(
        model,
        known.preparation.prepared(inputs).to(where),
        targets.to(where),
        every=max(1, steps // looks),
        clip_norm=clip_norm,
    )
    rate: dict[str, float] = {"learning_rate": learning_rate, "momentum": 0.0}
    numbers: dict[str, Any] = {"expected_batch_size": batch, "steps": steps}
    if noise_multiplier is None:
        method = named("plain-sgd", **rate)
    else:
        method = named("dpsgd", clip_norm=clip_norm, **rate)
        numbers |= {"noise_multiplier": noise_multiplier, "delta": 1e-5}
    with tempfile.TemporaryDirectory() as folder:
        run = fit(
            model,
            known,
            method=method,
            **numbers,
            device=where,
            directory=Path(folder) / "run",
            callbacks=[watch],
            compiled=False,
            silent=True,
            checkpoint_seconds=3600,
        )
    return _told(run, watch, is_private=noise_multiplier is not None)


def _first_weights(known: DataSet, activation: str, seed: int) -> nn.Sequential:
    """The network of the data set; torch's own generator is left as it was."""
    name, arguments = default_for(known.shape, num_classes=known.num_classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(name, **arguments, activation=activation)
    assert isinstance(model, nn.Sequential)
    return model


def _told(run: Run, watch: Watch, *, is_private: bool) -> dict[str, Any]:
    names = ("step", "gradient_norm", "activation_norm", "share_cut")
    return {
        **{name: [row[name] for row in watch.rows] for name in names},
        "accuracy": run.evaluations[-1].accuracy,
        "epsilon_proven": run.proven.epsilon if is_private else None,
    }
