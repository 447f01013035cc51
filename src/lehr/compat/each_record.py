"""Whether the loss of a batch is that of its records, each for itself.

A loop that is not Lehr's may do anything between its records and its loss: mix them in collation or in the training
step, pad one to the length of another, take a contrastive loss, or a mean over tokens of sentences of different length.
Then a clip bounds something else than what one record can do. So before a run begins, its own collation and its own
loss are tried on a few records, and what they do to one another is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr.errors import NotPrivate
from lehr.gradients.batches import buffers_put_back
from lehr.trainee import evaluating

MOST_RECORDS = 6  # so many are looked at, until two of them tell enough
ABSOLUTE = 1e-6
# Relative. Sums in another order differ by 3e-7 in float32, on a GPU by as much as TF32 rounds, more in short types.
ROUNDING, ROUNDING_ON_GPU, SHORT_ROUNDING = 2e-5, 2e-3, 2e-2
# Where the one record of a pair stands when both are in a batch several times: a permutation, or a shift, of the batch
# puts one in the place of the other.
_ROWS = (0, 1, 1, 0, 0, 1, 0, 1)

Buffers: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Loop:
    """How a loop makes a loss of records: ``batch_of`` puts some together, ``loss_of`` is what it calls backward on."""

    model: nn.Module
    batch_of: Callable[[list[Any]], Any]
    loss_of: Callable[[Any], Tensor]
    loss_reduction: str = "mean"

    def run(self, records: Sequence[Any], *, seed: int = 0) -> tuple[float, Buffers]:
        """The loss of these records with this seed of torch, and the buffers then. Everything is left as it was."""
        with torch.no_grad(), _seeded(self.model, seed), _kept_buffers(self.model):
            loss = float(self.loss_of(self.batch_of(list(records))))
            return loss, {name: value.clone() for name, value in self.model.named_buffers()}

    def loss(self, records: Sequence[Any], *, seed: int = 0) -> float:
        """The loss alone."""
        return self.run(records, seed=seed)[0]

    def shapes(self, records: Sequence[Any]) -> list[Any]:
        """What the tensors of a batch look like."""
        with _seeded(self.model, 0):
            leaves = pytree.tree_leaves(self.batch_of(list(records)))
        return [leaf.shape for leaf in leaves if isinstance(leaf, Tensor)]


def some_of(dataset: Any, num_held: int) -> list[Any]:
    """A few records from all over a data set."""
    places = {round(part * (num_held - 1) / max(1, MOST_RECORDS - 1)) for part in range(MOST_RECORDS)}
    return [dataset[place] for place in sorted(places)]


def refuse_mixed_records(loop: Loop, records: Sequence[Any]) -> bool:
    """Refuse a loop whose loss mixes records; whether there was a pair that could be tried in every way.

    Two records tell nothing where they have the same loss, or where one has none that is finite: such a record counts
    as nothing in training, and must not stop it. Weights are moved for the time: first ones can be so small that hardly
    anything comes through.
    """
    with _moved_weights(loop.model):
        pairs = list(combinations([(record, str(loop.shapes([record]))) for record in records], 2))
        # Where one is padded to the length of the other, that is what may be seen.
        pairs.sort(key=lambda pair: pair[0][1] == pair[1][1])
        share_is_tried = any(_refuse_shared_loss(loop, one, other) for (one, _), (other, _) in pairs)
        mixing_is_tried = any(_refuse_mixing(loop, one, other) for (one, _), (other, _) in reversed(pairs))
        return share_is_tried and mixing_is_tried


def _refuse_shared_loss(loop: Loop, first: Any, second: Any) -> bool:
    """Without dropout, the loss of two records is made of their losses alone."""
    with evaluating(loop.model):
        both, again = (loop.loss([first, second], seed=seed) for seed in (0, 1))
        if not _is_close(loop, both - again, both):
            return False  # it is random even so, as where words are masked: only mixing can be looked for
        alone = [loop.loss([record]) for record in (first, second)]
    if not all(map(math.isfinite, alone)):
        return False
    expected = sum(alone) / (2 if loop.loss_reduction == "mean" else 1)
    if not _is_close(loop, both - expected, *alone):
        raise NotPrivate(
            layer="the loss",
            reason=f"that of two records is not the {loop.loss_reduction} of their losses alone",
            instead="a loss with the same share for every record, a mask for what is padded, or another loss_reduction",
        )
    return alone[0] != alone[1]


def _refuse_mixing(loop: Loop, first: Any, second: Any) -> bool:
    """In training, what one row of a batch adds to the loss does not depend on what stands in the other rows.

    With one seed, dropout and the like draw the same for a row whoever stands in it, as long as shapes are the same.
    """
    batches = [[(first, second)[row ^ flip] for row in _ROWS] for flip in (0, 1)]
    of_first, of_second = [first] * len(_ROWS), [second] * len(_ROWS)
    if len({str(loop.shapes(batch)) for batch in (*batches, of_first, of_second)}) > 1:
        return False
    with _training(loop.model):
        for seed in (0, 1):
            one, buffers_of_first = loop.run(of_first, seed=seed)
            other, buffers_of_second = loop.run(of_second, seed=seed)
            if not math.isfinite(one) or not math.isfinite(other):
                return False
            _refuse_unlike(loop, one, loop.loss(of_first, seed=seed))
            _refuse_written(buffers_of_first, buffers_of_second)
            mixed = sum(loop.loss(batch, seed=seed) for batch in batches)
            if not _is_close(loop, mixed - one - other, one, other):
                raise NotPrivate(
                    layer="the loss",
                    reason="what a record adds to it depends on the other records of its batch",
                    instead="neither mixup nor negatives from the batch, in collation nor in the training step",
                )
    return one != other


def _refuse_unlike(loop: Loop, once: float, again: float) -> None:
    if not _is_close(loop, once - again, once):
        raise NotPrivate(
            layer="the loss",
            reason="with one seed of torch it is not the same twice, which hides whether records are mixed",
            instead="randomness of torch alone, and nothing that is counted, in collation and in the training step",
        )


def _refuse_written(first: Buffers, second: Buffers) -> None:
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            raise NotPrivate(
                layer=f"the buffer {name}",
                reason="the training step writes numbers of the records into it, and no noise is added to them",
                instead="eval() for the layer that does it, or one that keeps no statistics",
            )


def _is_close(loop: Loop, difference: float, *sizes: float) -> bool:
    rounding = max((_rounding(value) for value in loop.model.parameters()), default=ROUNDING)
    scale = sum(abs(size) for size in sizes)
    return abs(difference) <= ABSOLUTE + rounding * scale


def _rounding(value: Tensor) -> float:
    if value.dtype in (torch.float16, torch.bfloat16):
        return SHORT_ROUNDING
    return ROUNDING if value.device.type == "cpu" else ROUNDING_ON_GPU


@contextmanager
def _moved_weights(model: nn.Module) -> Iterator[None]:
    """Every trained weight away from where it is, about as far as networks begin from zero; then as it was."""
    generator = torch.Generator().manual_seed(0)
    trained = [value.detach() for value in model.parameters() if value.requires_grad]
    held = [value.clone() for value in trained]
    try:
        for value in trained:
            fan_in = math.prod(value.shape[1:]) or 1
            by = torch.randn(value.shape, generator=generator) / math.sqrt(fan_in)
            value.add_(by.to(value.device, value.dtype), alpha=1.0 if value.dim() > 1 else 0.1)
        yield
    finally:
        for value, before in zip(trained, held, strict=True):
            value.copy_(before)


@contextmanager
def _seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """With generators of torch that begin at this seed, on the devices of the model too, and go on as before after."""
    devices = sorted({value.device.index or 0 for value in model.parameters() if value.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        yield


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    put_back = buffers_put_back(model)
    try:
        yield
    finally:
        put_back()


@contextmanager
def _training(model: nn.Module) -> Iterator[None]:
    """The model as it is trained: layers that their user has put in evaluation stay so where the rest trains."""
    if model.training:
        yield
        return
    with evaluating(model):  # which remembers how it was
        model.train()
        yield
