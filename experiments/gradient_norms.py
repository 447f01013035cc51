"""Norms of records' gradients before clipping, while a network trains.

- ``norms_of_training``: mean gradient and activation norms, Figures 4 and 5 of Papernot et al. (2021)
- ``norms_of_gradients``: the distribution of gradient norms, Figure 7 of TAN (Sander et al. 2023)

Such norms are private values. They are computed here because these data sets are public; never do this on records that
must be protected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from experiments.tan_runs import CLIP_NORM, DECAY, EDGES, RATE, REFERENCE_BATCH, REFERENCE_NOISE, delta_of
from experiments.training import build_seeded, fit_silently
from lehr.data import load
from lehr.data.augmentation import augmentation_by_name
from lehr.gradients.ghost import GhostEngine
from lehr.methods.by_name import named
from lehr.networks.registry import default_for
from lehr.optim.averaging import ExponentialAverage
from lehr.planning.plan import PUBLIC, Plan
from lehr.planning.simulation import simulate
from lehr.run.shape import Callback, Progress
from lehr.training.prepare import check_device
from lehr.training.records import InputPipeline

WATCHED = 256  # records
_RECORDS_AT_ONCE = 64


class NormWatch(Callback):
    """Computes the gradient norms of some records at the steps in ``looks``, and keeps a summary of each."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        summary: Callable[[Tensor], dict[str, Any]],
        *,
        looks: Collection[int],
        views: int = 1,
    ) -> None:
        self._inputs, self._targets, self._summary, self._looks = inputs, targets, summary, looks
        self._engine = GhostEngine(model, partial(cross_entropy, reduction="none"), views=views, compiled=False)
        self.rows: list[dict[str, Any]] = []
        self._look(0)

    def stepped(self, progress: Progress) -> None:
        self._look(progress.step)

    def _look(self, step: int) -> None:
        if step in self._looks:
            inputs, targets = (torch.split(each, _RECORDS_AT_ONCE) for each in (self._inputs, self._targets))
            parts = zip(inputs, targets, strict=True)
            norms = torch.cat([self._engine.gradients(*part).norms() for part in parts])
            self.rows.append({"step": step, **self._summary(norms)})


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
    """Mean norms while a network trains with DPSGD, or without noise and clipping if there is no noise multiplier.

    Neither has momentum, so that both take the same step: the mean of gradients, or that of clipped ones with noise.
    """
    known, where = load(data, data_dir), check_device(device)
    name, arguments = default_for(known.shape, num_classes=known.num_classes)
    model = build_seeded(name, {**arguments, "activation": activation}, seed).to(where)
    assert isinstance(model, nn.Sequential)
    first = model[:2]  # up to the first activation
    inputs = known.preparation.prepared(known.train.inputs[:WATCHED]).to(where)

    def summary(norms: Tensor) -> dict[str, float]:
        with torch.no_grad():
            activations = first(inputs).flatten(1).norm(dim=1)
        return {
            "gradient_norm": norms.mean().item(),
            "activation_norm": activations.mean().item(),
            "share_cut": norms.gt(clip_norm).float().mean().item(),
        }

    targets = known.train.targets[:WATCHED].to(where)
    watch = NormWatch(model, inputs, targets, summary, looks=range(0, steps + 1, max(1, steps // looks)))
    settings: dict[str, float] = {"learning_rate": learning_rate, "momentum": 0.0}
    privacy: dict[str, float] = {}
    if noise_multiplier is not None:
        settings["clip_norm"] = clip_norm
        privacy = {"noise_multiplier": noise_multiplier, "delta": 1e-5}
    run = fit_silently(
        model,
        known,
        method=named("dpsgd" if privacy else "plain-sgd", **settings),
        expected_batch_size=batch,
        steps=steps,
        **privacy,
        device=where,
        callbacks=[watch],
        compiled=False,
    )
    return {
        **{name: [row[name] for row in watch.rows] for name in watch.rows[0]},
        "accuracy": run.evaluations[-1].accuracy,
        "epsilon_proven": run.proven.epsilon if privacy else None,
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
    """The distribution of the norms of ``watched`` records' gradients after each of the steps in ``looks``."""
    known, where = load(data_name, data_dir), check_device(device)
    model = build_seeded(*network, seed).to(where)
    pipeline = InputPipeline(
        preparation=known.preparation, augmentation=augmentation_by_name(augmentation), views=views, device=where
    )
    records = known.train.at(torch.arange(watched))
    inputs = pipeline.trained(records.inputs, torch.Generator(where).manual_seed(seed))
    assert isinstance(inputs, Tensor)
    watch = NormWatch(model, inputs, records.targets.to(where), distribution_of, looks=looks, views=views)
    reference = Plan(
        noise_multiplier=REFERENCE_NOISE,
        expected_batch_size=reference_batch,
        records=known.records,
        steps=steps,
        delta=delta_of(known.records),
    )
    fit_silently(
        model,
        known,
        declared=PUBLIC,
        plan=simulate(reference, expected_batch_size=batch),
        method=named("dpsgd", learning_rate=RATE, clip_norm=CLIP_NORM, momentum=0.0),
        averaging=ExponentialAverage(decay=DECAY),
        augmentation=augmentation,
        views=views,
        device=where,
        callbacks=(watch,),
    )
    return {"looks": watch.rows}


def distribution_of(norms: Tensor) -> dict[str, Any]:
    """The share of the norms in each bin, their median, and the shares that are clipped and that are small.

    >>> found = distribution_of(torch.tensor([0.0, 0.5, 2.0, 3.0]))
    >>> found["median"], found["share_clipped"], sum(found["shares"])
    (1.25, 0.5, 1.0)
    """
    values, ends = norms.double(), (0.0, *EDGES[1:-1], math.inf)  # the outer bins have all that is beyond them

    def share(mask: Tensor) -> float:
        return mask.double().mean().item()

    return {
        "shares": [share((low <= values) & (values < high)) for low, high in pairwise(ends)],
        "median": values.quantile(0.5).item(),
        "share_clipped": share(values > CLIP_NORM),
        "share_below_a_tenth": share(values < CLIP_NORM / 10),
    }
