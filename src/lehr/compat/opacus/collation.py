"""Whether the collation of a loader keeps records apart, tried on a few of them before a loop begins.

Mixup in ``collate_fn`` makes of two records two others, and no clip bounds what one of them does to both. Padding to
the longest record of a batch is harmless where model and loss ignore what is padded, which cannot be seen from here.
The loss of an Opacus loop is not known before it runs, so that collation is all that can be tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lehr.errors import NotPrivate

SEEDS = range(4)
# Which of two records stands where: a permutation, or a shift, of the batch puts one in the place of the other.
_ROWS = (0, 1, 1, 0, 0, 1, 0, 1)

Collate: TypeAlias = Callable[[list[Any]], Any]


class Found(Enum):
    """What a try showed."""

    APART = "records are kept apart"
    PADDED = "records have the length of the longest in their batch"
    NOTHING = "records that are alike, or whose batches are not the same twice, show nothing"


def tried(collate: Collate, records: Sequence[Any]) -> Found:
    """Refuse a collation in which a record's row depends on other records; else, what could be seen.

    >>> from torch.utils.data import default_collate
    >>> tried(default_collate, [torch.zeros(2), torch.ones(2)])
    <Found.APART: 'records are kept apart'>
    >>> tried(lambda records: torch.stack(records).roll(1, 0) + torch.stack(records), [torch.zeros(2), torch.ones(2)])
    Traceback (most recent call last):
    lehr.errors.NotPrivate: collate_fn cannot be ...
    """
    known = [(record, _shapes(collate, [record] * len(_ROWS))) for record in records]
    # Where one record is padded to the length of the other, only its length can be seen to change.
    alike = [(first, second) for (first, one), (second, other) in combinations(known, 2) if one == other]
    is_apart = any(_refuse_mixing_of(collate, first, second) for first, second in alike)
    if any(shapes != known[0][1] for _, shapes in known):
        return Found.PADDED
    return Found.APART if is_apart else Found.NOTHING


def _refuse_mixing_of(collate: Collate, first: Any, second: Any) -> bool:
    """Whether these two records could tell anything."""
    alone = [[record] * len(_ROWS) for record in (first, second)]
    both = [(first, second)[row] for row in _ROWS]
    if _shapes(collate, both) != _shapes(collate, alone[0]):
        return False
    if not all(_is_same_twice(collate, batch) for batch in alone):
        return False
    told = [_refuse_mixing(collate, both, alone, seed=seed) for seed in SEEDS]  # every seed is tried
    return any(told)


def _is_same_twice(collate: Collate, batch: list[Any]) -> bool:
    """Randomness that is not torch's would look like mixing."""
    return all(
        _is_same(*leaves)
        for seed in SEEDS
        for leaves in zip(_collated(collate, batch, seed=seed), _collated(collate, batch, seed=seed), strict=True)
    )


def _refuse_mixing(collate: Collate, both: list[Any], alone: list[list[Any]], *, seed: int) -> bool:
    """With one seed, a row is what it is in a batch of this record alone; whether the two records differ."""
    mixed, *singles = (_collated(collate, batch, seed=seed) for batch in (both, *alone))
    differs = False
    for leaf, *unmixed in zip(mixed, *singles, strict=True):
        if leaf.shape[:1] != (len(_ROWS),):
            continue  # it has no row for each record
        for place, row in enumerate(_ROWS):
            if not _is_same(leaf[place], unmixed[row][place]):
                raise NotPrivate(
                    layer="collate_fn",
                    reason="what it makes of a record depends on the other records of the batch",
                    instead="no mixup here; augmentation of single records belongs into the data set",
                )
        differs = differs or not _is_same(*unmixed)
    return differs


def _shapes(collate: Collate, batch: list[Any]) -> list[torch.Size]:
    return [leaf.shape for leaf in _collated(collate, batch, seed=0)]


def _collated(collate: Collate, batch: list[Any], *, seed: int) -> list[Tensor]:
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        return _tensors(collate(list(batch)))


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if hasattr(batch, "items"):
        batch = [value for _, value in batch.items()]
    return [leaf for value in batch for leaf in _tensors(value)] if isinstance(batch, list | tuple) else []


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.is_floating_point():
        one, other = one.nan_to_num(), other.nan_to_num()
    return torch.equal(one, other)
