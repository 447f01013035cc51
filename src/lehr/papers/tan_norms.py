"""Norms of records' gradients, averaged over views and before the clip, while a network trains: Figure 7 of TAN.

A gradient norm is a private value. These are looked at because CIFAR-10 is public, in a run that protects nobody.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import data, networks
from lehr.data.augmentation.families import named as augmentation_named
from lehr.gradients.ghost import GhostEngine
from lehr.methods.dpsgd import dpsgd
from lehr.papers.tan_runs import CLIP_NORM, DECAY, RATE, REFERENCE_BATCH, REFERENCE_NOISE, delta_of
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.run_shape import PUBLIC, Callback, Progress
from lehr.training.fit import a_device, fit
from lehr.training.looks import Look
from lehr.update.averaging import ExponentialAverage

EDGES = tuple(10 ** (tenths / 5) for tenths in range(-20, 11))  # of the bins: 10⁻⁴ to 10²
_AT_ONCE = 64


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
    known, where = data.load(data_name, data_dir=data_dir), a_device(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = networks.build(network[0], **network[1]).to(where)
    look = Look(preparation=known.preparation, augmentation=augmentation_named(augmentation), views=views, device=where)
    first = known.train.at(torch.arange(watched))
    seen = look.trained(first.inputs, torch.Generator(where).manual_seed(seed))
    assert isinstance(seen, Tensor)
    watch = _Watch(model, seen, first.targets.to(where), views=views, looks=looks)
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


class _Watch(Callback):
    """The norms at the weights that a model has after some steps."""

    def __init__(self, model: nn.Module, inputs: Tensor, targets: Tensor, *, views: int, looks: Sequence[int]) -> None:
        self._inputs, self._targets, self._looks = inputs, targets, frozenset(looks)
        loss_fn = partial(cross_entropy, reduction="none")
        self._engine = GhostEngine(model, loss_fn, views=views, compiled=False)
        self.found: list[dict[str, Any]] = []
        self._look(0)

    def stepped(self, progress: Progress) -> None:
        self._look(progress.step)

    def _look(self, step: int) -> None:
        if step in self._looks:
            norms = torch.cat([self._norms(first) for first in range(0, len(self._targets), _AT_ONCE)])
            self.found.append({"step": step, **spread_of(norms.tolist())})

    def _norms(self, first: int) -> Tensor:
        part = slice(first, first + _AT_ONCE)
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
