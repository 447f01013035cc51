"""The user as the unit of privacy: a step draws users, and each of them enters with the mean of a few records.

``UserRecords`` is a set of records by their owners. Of every drawn user, at most ``records_per_user`` records are
chosen at random, anew at each step; ``ViewTargets`` give each of them its weight, so that their gradients are averaged
before the clip, as those of augmented views are. To the sampler, the clip, the noise and the accountant, a user is one
record.

The alternative is to draw and clip records one by one: ``records_of_run`` chooses at most so many records of each user
for the whole run, and the accountant counts users by ``GroupPoissonSampled``. The proof of both:
``privacy/users.proof.md``.

Axes: B users of a batch, K records of a user, M chosen records of all drawn users.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import Inputs, Records, ViewTargets
from lehr.privacy.rng import RunKey, StepRandomness

CHOICE = "records of users"  # the purpose of the numbers that choose the records of a drawn user
SELECTION = "records of the run"  # the purpose of the numbers that choose the records of every user for the whole run


def user_indices(ids: Any, *, num_records: int) -> Tensor:
    """Return the user of each record, counted from zero. Ids are numbers or text; the error does not quote one."""
    allowed = "one id for each record, a number or text"
    try:
        array = ids.detach().cpu().numpy() if isinstance(ids, Tensor) else np.asarray(ids)
        if array.shape != (num_records,):
            raise InvalidValue("owners", allowed=allowed, given="another number of ids, or of axes")
        if array.dtype.kind == "O" and any(each is None or each != each for each in array):  # NaN is not itself
            raise InvalidValue("owners", allowed=allowed, given="a missing id")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidValue("owners", allowed=allowed, given="a missing id")
        _, users = np.unique(array, return_inverse=True)
    except (TypeError, ValueError) as error:  # ids of several types, or of none that can be compared
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue("owners", allowed=allowed, given=type(ids).__name__) from None
    return torch.from_numpy(users.astype(np.int64).reshape(-1))


def records_of_run(owners: Tensor, *, most: int, key: RunKey) -> Tensor:
    """Return the indices of at most ``most`` records of each user, in order: chosen at random, once for all steps."""
    validate.count(most=most)
    mixed = key.at(0, 0).uniforms(SELECTION, len(owners)).argsort()
    by_user, counts = mixed[owners[mixed].argsort(stable=True)], torch.bincount(owners)
    places = torch.arange(len(owners)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return by_user[places < most].sort().values


@dataclass(frozen=True, eq=False)
class UserRecords:
    """Records by user. ``owners`` has the user of each record, from zero; ``len`` is the number of users, private."""

    records: Records
    owners: Tensor
    records_per_user: int

    def __post_init__(self) -> None:
        validate.count(records_per_user=self.records_per_user)
        if self.owners.shape != (len(self.records),):
            raise InvalidValue("owners", allowed="one for each record", given=tuple(self.owners.shape))

    def __len__(self) -> int:
        return len(self._counts)

    @cached_property
    def _counts(self) -> Tensor:
        return torch.bincount(self.owners)

    @cached_property
    def _starts(self) -> Tensor:
        return self._counts.cumsum(0) - self._counts

    @cached_property
    def _by_user(self) -> Tensor:
        """The indices of all records, those of a user one after another."""
        return self.owners.argsort(stable=True)

    def of_draw(self, users: Tensor, randomness: StepRandomness) -> DrawnUsers:
        """Return the drawn users, with at most K records of each, chosen at random."""
        drawn = users.sort().values
        counts, most = self._counts[drawn], self.records_per_user
        row_M = torch.arange(len(drawn)).repeat_interleave(counts)
        place_M = torch.arange(len(row_M)) - (counts.cumsum(0) - counts)[row_M]  # of a record among those of its user
        record_M = self._by_user[self._starts[drawn][row_M] + place_M]
        mixed_M = randomness.uniforms(CHOICE, len(row_M)).argsort()
        order_M = mixed_M[row_M[mixed_M].argsort(stable=True)]  # by user, and of each user at random
        is_chosen_M = place_M < most
        chosen = torch.zeros(len(drawn), most, dtype=torch.int64)
        chosen[row_M[is_chosen_M], place_M[is_chosen_M]] = record_M[order_M][is_chosen_M]
        held = counts.clamp(max=most).unsqueeze(1)
        is_held = torch.arange(most) < held
        # A user with fewer records is filled up with one of their own, which counts for nothing.
        chosen = torch.where(is_held, chosen, chosen[:, :1])
        weights = torch.where(is_held, most / held, 0.0).float()
        return DrawnUsers(self.records, drawn, chosen, weights, num_users=len(self))


@dataclass(frozen=True, eq=False)
class DrawnUsers:
    """The users of one draw, in order, with the ``chosen`` records of each and the weights of their losses."""

    records: Records
    users: Tensor
    chosen: Tensor
    weights: Tensor
    num_users: int

    def __len__(self) -> int:
        return self.num_users

    def batch(self, indices_B: Tensor) -> tuple[Inputs, ViewTargets]:
        """Return inputs and targets of drawn users, each with the axes BK; for others, padding of weight zero."""
        inputs, targets, _ = self._batch(indices_B)
        return inputs, targets

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Inputs, ViewTargets, Tensor]]:
        """Yield inputs, targets and which users were drawn: a user that was not is padding, and counts for nothing."""
        yield from map(self._batch, parts)

    def _batch(self, indices_B: Tensor) -> tuple[Inputs, ViewTargets, Tensor]:
        size = self.chosen.shape[1]
        found = torch.searchsorted(self.users, indices_B)
        rows = found.clamp(max=max(0, len(self.users) - 1))
        is_drawn = torch.zeros(len(indices_B), dtype=torch.bool)
        chosen = torch.zeros(len(indices_B), size, dtype=torch.int64)
        weights = torch.zeros(len(indices_B), size)
        if len(self.users):
            is_drawn = self.users[rows] == indices_B
            chosen = self.chosen[rows]
            weights = self.weights[rows] * is_drawn.unsqueeze(1)
        return *by_user(*self.records.batch(chosen.flatten()), weights), is_drawn


def by_user(inputs: Inputs, targets: Any, weights_BK: Tensor) -> tuple[Inputs, ViewTargets]:
    """Inputs and targets of users from those of their records, which are given user by user."""

    def grouped(leaf: Tensor) -> Tensor:
        return leaf.view(*weights_BK.shape, *leaf.shape[1:])

    inputs, targets = pytree.tree_map(grouped, (inputs, targets))
    return inputs, ViewTargets(targets, weights_BK.to(pytree.tree_leaves(targets)[0].device))
