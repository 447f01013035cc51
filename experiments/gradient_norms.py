"""Norms of records' gradients before clipping, while a network trains.

- ``norms_of_training``: mean gradient and activation norms, Figures 4 and 5 of Papernot et al. (2021)
- ``norms_of_gradients``: how gradient norms are spread, Figure 7 of TAN (Sander et al. 2023)

Such norms are private values. They are computed here because these data sets are public; never do this on records that
must be protected.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.networks import build
from experiments.tan_runs import CLIP_NORM, DECAY, EDGES, RATE, REFERENCE_BATCH, REFERENCE_NOISE, delta_of
from lehr.data import DataSet, load
from lehr.data.augmentation import augmentation_by_name
from lehr.gradients.ghost import GhostEngine
from lehr.methods.by_name import named
from lehr.methods.dpsgd import dpsgd
from lehr.networks.registry import default_for
from lehr.optim.averaging import ExponentialAverage
from lehr.planning.plan import PUBLIC, Plan
from lehr.planning.simulation import simulate
from lehr.run.shape import Callback, Progress
from lehr.training.ending import Run
from lehr.training.fit import fit
from lehr.training.prepare import check_device
from lehr.training.records import InputPipeline

WATCHED = 256  # records
_RECORDS_AT_ONCE = 64
_cross_entropy = partial(cross_entropy, reduction="none")


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
    known, where = load(data, data_dir), check_device(device)
    model = _first_weights(known, activation, seed).to(where)
    inputs, targets = known.train.inputs[:WATCHED], known.train.targets[:WATCHED]
    watch = NormWatch(
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
    return _outcome(run, watch, is_private=noise_multiplier is not None)


@dataclass
class NormWatch(Callback):
    """The norms of some records at the weights that a model has now and then, as means over the records."""

    model: nn.Sequential
    inputs: Tensor
    targets: Tensor
    every: int
    clip_norm: float
    rows: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._engine = GhostEngine(self.model, _cross_entropy, compiled=False)
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


def _first_weights(known: DataSet, activation: str, seed: int) -> nn.Sequential:
    """The network of the data set; torch's own generator is left as it was."""
    name, arguments = default_for(known.shape, num_classes=known.num_classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(name, **arguments, activation=activation)
    assert isinstance(model, nn.Sequential)
    return model


def _outcome(run: Run, watch: NormWatch, *, is_private: bool) -> dict[str, Any]:
    names = ("step", "gradient_norm", "activation_norm", "share_cut")
    return {
        **{name: [row[name] for row in watch.rows] for name in names},
        "accuracy": run.evaluations[-1].accuracy,
        "epsilon_proven": run.proven.epsilon if is_private else None,
    }


def norms_of_gradients(
    *,
    device: str | None,
    data_dir: str | None,
    data_name: str,
    network: tuple[str, Mapping[str, Any]],
    augmentation: str,
    views: int,
    batch: float,
    reference_batch: float = REFERENCE_BATCH,
    steps: int,
    watched: int,
    looks: Sequence[int],
    seed: int = 0,
) -> dict[str, Any]:
    """How the norms of ``watched`` records' gradients are spread after each of the steps in ``looks``."""
    known, where = load(data_name, data_dir), check_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build(network[0], **network[1]).to(where)
    look = InputPipeline(
        preparation=known.preparation, augmentation=augmentation_by_name(augmentation), views=views, device=where
    )
    first = known.train.at(torch.arange(watched))
    seen = look.trained(first.inputs, torch.Generator(where).manual_seed(seed))
    assert isinstance(seen, Tensor)
    watch = NormSpreadWatch(model, seen, first.targets.to(where), views=views, looks=looks)
    reference = Plan(
        noise_multiplier=REFERENCE_NOISE,
        expected_batch_size=reference_batch,
        records=known.records,
        steps=steps,
        delta=delta_of(known.records),
    )
    with tempfile.TemporaryDirectory() as folder:
        fit(
            model,
            known,
            declared=PUBLIC,
            plan=simulate(reference, expected_batch_size=batch),
            method=dpsgd(learning_rate=RATE, clip_norm=CLIP_NORM, momentum=0.0),
            averaging=ExponentialAverage(decay=DECAY),
            augmentation=augmentation,
            views=views,
            device=where,
            directory=Path(folder) / "run",
            callbacks=(watch,),
            silent=True,
            checkpoint_seconds=3600,
        )
    return {"looks": watch.found}


class NormSpreadWatch(Callback):
    """The norms at the weights that a model has after some steps."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor, *, views: int, looks: Sequence[int]) -> None:
        self._inputs, self._targets, self._looks = inputs, targets, frozenset(looks)
        self._engine = GhostEngine(model, _cross_entropy, views=views, compiled=False)
        self.found: list[dict[str, Any]] = []
        self._look(0)

    def stepped(self, progress: Progress) -> None:
        self._look(progress.step)

    def _look(self, step: int) -> None:
        if step in self._looks:
            norms = torch.cat([self._norms(first) for first in range(0, len(self._targets), _RECORDS_AT_ONCE)])
            self.found.append({"step": step, **spread_of(norms.tolist())})

    def _norms(self, first: int) -> Tensor:
        part = slice(first, first + _RECORDS_AT_ONCE)
        return self._engine.gradients(self._inputs[part], self._targets[part]).norms()


def spread_of(norms: Sequence[float]) -> dict[str, Any]:
    """The share of the norms in each bin, their median, and the share above the clip norm; smaller norms are in the
    first bin and larger ones in the last.

    >>> found = spread_of([0.0, 0.5, 2.0, 3.0])
    >>> found["median"], found["share_clipped"], sum(found["shares"])
    (1.25, 0.5, 1.0)
    """
    ends = (0.0, *EDGES[1:-1], math.inf)
    return {
        "shares": [sum(low <= norm < high for norm in norms) / len(norms) for low, high in pairwise(ends)],
        "median": float(torch.tensor(norms, dtype=torch.float64).quantile(0.5)),
        "share_clipped": sum(norm > CLIP_NORM for norm in norms) / len(norms),
        "share_below_a_tenth": sum(norm < CLIP_NORM / 10 for norm in norms) / len(norms),
    }
