"""Checks, before a run begins, that a loop keeps its records apart.

A user's loop may mix records in collation or in the training step, pad one record to the length of another, use a
contrastive loss, or a mean over the tokens of sentences of different length. Clipping would then not bound the
influence of one record. ``check_record_independence`` tries the loop's own collation and loss on a few records;
``check_collation`` tries the collation alone, for loops whose loss is not known before they run.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lehr.errors import NotPrivate
from lehr.gradients.batches import buffers_put_back
from lehr.run.train_state import evaluating

MAX_RECORDS = 6  # that are tried
ABSOLUTE = 1e-6
# Relative. Sums in another order differ by 3e-7 in float32, on a GPU by TF32 rounding, more in 16-bit types.
ROUNDING, ROUNDING_ON_GPU, SHORT_ROUNDING = 2e-5, 2e-3, 2e-2
# Which of two records is in which row: any permutation or shift of the batch puts one where the other was.
_ROWS = (0, 1, 1, 0, 0, 1, 0, 1)
_SEEDS = range(4)

Buffers: TypeAlias = dict[str, Tensor]
Collate: TypeAlias = Callable[[list[Any]], Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordLoop:
    """How a loop gets from records to a loss: ``batch_of`` collates, ``loss_of`` is what ``backward`` is called on.

    The layers of the model are in the modes in which they will be trained.
    """

    model: nn.Module
    batch_of: Collate
    loss_of: Callable[[Any], Tensor]
    loss_reduction: str = "mean"
    layer: str = "the loss"  # in errors

    def run(self, records: Sequence[Any], *, seed: int = 0) -> tuple[float, Buffers]:
        """The loss of these records under this torch seed, and the buffers afterwards; everything is restored."""
        restore = buffers_put_back(self.model)
        try:
            with torch.no_grad(), _seeded(self.model, seed):
                loss = float(self.loss_of(self.batch_of(list(records))))
            return loss, {name: value.clone() for name, value in self.model.named_buffers()}
        finally:
            restore()

    def shapes(self, records: Sequence[Any]) -> list[torch.Size]:
        """The shapes of the tensors of a batch."""
        return [leaf.shape for leaf in self.leaves(records)]

    def leaves(self, records: Sequence[Any]) -> list[Tensor]:
        """The tensors of a batch, collated under a fixed torch seed."""
        with _seeded(self.model, 0):
            return _tensors(self.batch_of(list(records)))


def sample_records(dataset: Any, num_records: int) -> list[Any]:
    """A few records, spread over the data set."""
    indices = {round(part * (num_records - 1) / max(1, MAX_RECORDS - 1)) for part in range(MAX_RECORDS)}
    return [dataset[index] for index in sorted(indices)]


def check_record_independence(loop: RecordLoop, records: Sequence[Any]) -> bool:
    """Refuse a loop whose loss mixes records; return whether some pair of records could be tried in every way.

    A pair shows nothing if both have the same loss, or one has a loss that is not finite. Weights are perturbed during
    the check, since initial weights can be too small for a dependence to show.
    """
    with _perturbed(loop.model):
        pairs = list(combinations([(record, loop.shapes([record])) for record in records], 2))
        pairs.sort(key=lambda pair: pair[0][1] == pair[1][1])  # pairs of different lengths first: padding may show
        shares_tried = any(_refuse_shared_loss(loop, one, other) for (one, _), (other, _) in pairs)
        mixing_tried = any(_refuse_mixing(loop, one, other) for (one, _), (other, _) in reversed(pairs))
        return shares_tried and mixing_tried


def _refuse_shared_loss(loop: RecordLoop, first: Any, second: Any) -> bool:
    """In evaluation, the loss of two records is the mean, or the sum, of their losses."""
    with evaluating(loop.model):
        both, again = (loop.run([first, second], seed=seed)[0] for seed in (0, 1))
        if not _is_close(loop, both - again, both):
            return False  # random even in evaluation, such as by masking words: only mixing can be tried
        alone = [loop.run([record])[0] for record in (first, second)]
    if not all(map(math.isfinite, alone)):
        return False
    expected = sum(alone) / (2 if loop.loss_reduction == "mean" else 1)
    if not _is_close(loop, both - expected, *alone):
        raise NotPrivate(
            layer="the loss",
            reason=f"that of two records is not the {loop.loss_reduction} of their losses",
            instead="a loss that weighs all records equally, a mask for padding, or another loss_reduction",
        )
    return alone[0] != alone[1]


def _refuse_mixing(loop: RecordLoop, first: Any, second: Any) -> bool:
    """In the mode in which the model is trained, what a row adds to the loss does not depend on the other rows.

    Under one seed, dropout draws the same for a row whichever record is in it, as long as the shapes are the same.
    """
    batches = [[(first, second)[row ^ flip] for row in _ROWS] for flip in (0, 1)]
    alone = [[record] * len(_ROWS) for record in (first, second)]
    if any(loop.shapes(batch) != loop.shapes(alone[0]) for batch in (*batches, alone[1])):
        return False
    for seed in _SEEDS:
        (one, buffers), (other, other_buffers) = (loop.run(batch, seed=seed) for batch in alone)
        if not math.isfinite(one + other):
            return False
        again = sum(loop.run(batch, seed=seed)[0] for batch in alone)
        if not _is_close(loop, one + other - again, one, other):
            if loop.loss_of is _fingerprint:
                return False
            raise NotPrivate(
                layer=loop.layer,
                reason="it differs between two runs with one torch seed, so mixed records cannot be detected",
                instead="torch's randomness only, and no counters, in collation and in the training step",
            )
        for name, value in buffers.items():
            if not torch.equal(value, other_buffers[name]):
                raise NotPrivate(
                    layer=f"the buffer {name}",
                    reason="the training step writes statistics of the records into it, without noise",
                    instead="eval() for the layer that does it, or a layer without statistics",
                )
        mixed = sum(loop.run(batch, seed=seed)[0] for batch in batches)
        if not _is_close(loop, mixed - one - other, one, other):
            raise NotPrivate(
                layer=loop.layer,
                reason="what a record adds to it depends on the other records of its batch",
                instead="no mixup and no in-batch negatives, neither in collation nor in the training step",
            )
    return one != other


def _is_close(loop: RecordLoop, difference: float, *sizes: float) -> bool:
    rounding = ROUNDING
    for value in loop.model.parameters():
        if value.dtype in (torch.float16, torch.bfloat16):
            rounding = SHORT_ROUNDING
        elif value.device.type != "cpu":
            rounding = max(rounding, ROUNDING_ON_GPU)
    return abs(difference) <= ABSOLUTE + rounding * sum(abs(size) for size in sizes)


@contextmanager
def _perturbed(model: nn.Module) -> Iterator[None]:
    """Move every trainable weight by about the scale of an initialisation, and restore it afterwards."""
    generators: dict[torch.device, torch.Generator] = {}
    weights = [value.detach() for value in model.parameters() if value.requires_grad]
    saved = [value.clone() for value in weights]
    try:
        for value in weights:
            generator = generators.setdefault(value.device, torch.Generator(value.device).manual_seed(0))
            change = torch.randn(value.shape, generator=generator, device=value.device, dtype=torch.float32)
            change /= math.sqrt(math.prod(value.shape[1:]) or 1)
            value.add_(change.to(value.dtype), alpha=1.0 if value.dim() > 1 else 0.1)
        yield
    finally:
        for value, before in zip(weights, saved, strict=True):
            value.copy_(before)


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed torch's generators, also on the model's devices, and restore them afterwards."""
    devices = sorted({value.device.index or 0 for value in model.parameters() if value.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        yield


class CollationResult(Enum):
    """The outcome of ``check_collation``."""

    INDEPENDENT = "records are kept apart"
    PADDED = "records are padded to the longest of their batch"
    UNKNOWN = "records are alike, or collation is not repeatable under a torch seed"


def check_collation(collate: Collate, records: Sequence[Any]) -> CollationResult:
    """Refuse a collation in which the row of a record depends on other records.

    Padding is harmless if model and loss ignore it, which cannot be seen from here.

    >>> from torch.utils.data import default_collate
    >>> check_collation(default_collate, [torch.zeros(2), torch.ones(2)]).name
    'INDEPENDENT'
    >>> mixup = lambda records: torch.stack(records).roll(1, 0) + torch.stack(records)
    >>> check_collation(mixup, [torch.zeros(2), torch.ones(2)])
    Traceback (most recent call last):
    lehr.errors.NotPrivate: collate_fn cannot be ...
    """
    loop = RecordLoop(model=nn.Identity(), batch_of=collate, loss_of=_fingerprint, layer="collate_fn")
    known = [(record, loop.shapes([record] * len(_ROWS))) for record in records]
    # Records of different lengths are padded, and only their lengths can be seen to change.
    pairs = [(first, second) for (first, one), (second, other) in combinations(known, 2) if one == other]
    is_independent = any(_refuse_mixing(loop, first, second) for first, second in pairs)
    if any(shapes != known[0][1] for _, shapes in known):
        return CollationResult.PADDED
    return CollationResult.INDEPENDENT if is_independent else CollationResult.UNKNOWN


def _fingerprint(batch: Any) -> Tensor:
    """A mean over rows, like a loss, that changes with every bit of a row."""
    leaves = [leaf for leaf in _tensors(batch) if leaf.shape[:1] == (len(_ROWS),)]  # one row per record
    rows = zip(*(leaf.reshape(len(_ROWS), -1).cpu().contiguous().view(torch.uint8) for leaf in leaves), strict=True)
    return torch.tensor(
        [zlib.crc32(torch.cat(row).numpy().tobytes()) / 2**32 for row in rows], dtype=torch.float64
    ).mean()


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if hasattr(batch, "items"):
        batch = [value for _, value in batch.items()]
    return [leaf for value in batch for leaf in _tensors(value)] if isinstance(batch, list | tuple) else []
