"""Where clipped gradients point: ``python -m benchmarks.clip_direction --save FILE`` prints one table.

ADADP's network on MNIST, trained by DPSGD's clip without noise. At some steps the sum of clipped gradients over one
batch is compared with the sum of the gradients as they are, by the cosine of the angle between them: for a flat clip,
and for bounds on coordinates that are a multiple of the mean gradient's own size there, as ADADP's paper has them.
Nothing is private here.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import parse_options, save
from lehr import data, networks
from lehr.data import InMemory, Preparation
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import ClipRule
from lehr.privacy.clipping import FlatClip, PerCoordinateClip, Unclipped

CLIP_NORM, BOUND_SCALE, RATE, BATCH = 4.0, 1.2, 0.1, 600
LOOKS = (0, 100, 600)
Sums = dict[str, Tensor]


def projected(records: InMemory) -> nn.Module:
    """The network with the records' own principal components in front."""
    torch.manual_seed(0)
    model = networks.build("projected_mlp")
    rows = Preparation().prepared(records.inputs).flatten(1)
    moment = (rows.T @ rows).double()
    components = torch.linalg.eigh(moment).eigenvectors.flip(1)[:, :60]
    model.get_buffer("projection.components").copy_(components)
    return model


def cosine(one: Sums, other: Sums) -> float:
    """Of the angle between two sums, each taken as one vector."""

    def product(left: Sums, right: Sums) -> float:
        return math.fsum(float((left[name].double() * right[name].double()).sum()) for name in left)

    return product(one, other) / math.sqrt(product(one, one) * product(other, other))


def looked_at(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, float]:
    """The cosines at the weights as they are."""
    engine = MaterialisedEngine(model, partial(cross_entropy, reduction="none"))

    def summed(rule: ClipRule) -> Sums:
        return dict(engine.private_sum(rule, *batch).values)

    whole = summed(Unclipped())
    bounds = {name: BOUND_SCALE * value.abs() / len(batch[1]) for name, value in whole.items()}
    by_coordinates = PerCoordinateClip(bounds)
    return {"flat": cosine(summed(FlatClip(CLIP_NORM)), whole), "coordinates": cosine(summed(by_coordinates), whole)}


def measure(records: InMemory) -> list[dict[str, Any]]:
    """The cosines at some steps of training."""
    model, generator = projected(records), torch.Generator().manual_seed(1)
    engine = GhostEngine(model, partial(cross_entropy, reduction="none"), compiled=False)
    rows: list[dict[str, Any]] = []

    def batch(size: int) -> tuple[Tensor, Tensor]:
        inputs, targets = records.batch(torch.randperm(len(records), generator=generator)[:size])
        return Preparation().prepared(inputs), targets.long()

    for step in range(max(LOOKS) + 1):
        if step in LOOKS:
            rows.append({"step": step, **looked_at(model, batch(2 * BATCH))})
        clipped = engine.private_sum(FlatClip(CLIP_NORM), *batch(BATCH), torch.ones(BATCH, dtype=torch.bool))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.sub_(RATE * clipped.values[name] / BATCH)
    return rows


def main() -> None:
    given = parse_options(__doc__, data_dir={})
    rows = measure(data.load("mnist", data_dir=given.data_dir).train)
    save(given, rows=rows)
    print("step   flat  coordinates")
    for row in rows:
        print(f"{row['step']:4d}  {row['flat']:5.2f}  {row['coordinates']:11.2f}")


if __name__ == "__main__":
    main()
