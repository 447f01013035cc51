"""The scores that an attack gives to members and non-members, and the errors of the attack at a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lehr.errors import InvalidValue

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scores:
    """How much each record looks like one that was trained on; a larger score is more like a member.

    A record that the attack is sure about may have an infinite score. Each side holds at least one score, and they are
    kept as arrays that cannot be written to.

    >>> Scores(members=[2.0, 3.0], others=[0.0, 1.0, 2.0]).members
    array([2., 3.])
    """

    members: Floats
    others: Floats

    def __post_init__(self) -> None:
        for name in ("members", "others"):
            given = getattr(self, name)
            try:
                values = np.array(given, dtype=np.float64)
            except (TypeError, ValueError, OverflowError):
                raise InvalidValue(name, allowed="a row of numbers", given=given) from None
            if values.ndim != 1 or not values.size:
                raise InvalidValue(name, allowed="a row of numbers", given=f"an array of shape {values.shape}")
            if np.isnan(values).any():
                raise InvalidValue(name, allowed="numbers without NaN", given=f"{np.isnan(values).sum()} NaN")
            values.flags.writeable = False
            object.__setattr__(self, name, values)


def pooled(parts: Sequence[Scores]) -> Scores:
    """The scores of several attacks as those of one."""
    return Scores(*(np.concatenate([getattr(part, side) for part in parts]) for side in ("members", "others")))


@dataclass(frozen=True, eq=False, kw_only=True)
class Errors:
    """Errors counted at several thresholds, one entry each, out of so many others and members."""

    false_positives: Counts
    false_negatives: Counts
    num_others: int
    num_members: int

    def upper_rates(self, *, error_probability: float) -> tuple[Floats, Floats]:
        """Bounds on the false positive and the false negative rate; both hold but with ``error_probability``."""
        one_side = error_probability / 2
        return (
            upper_rate(self.false_positives, of=self.num_others, error_probability=one_side),
            upper_rate(self.false_negatives, of=self.num_members, error_probability=one_side),
        )


def upper_rate(count: ArrayLike, *, of: int, error_probability: float) -> Floats:
    """The largest rate under which no more than ``count`` of ``of`` had at least ``error_probability``.

    >>> float(upper_rate(0, of=1, error_probability=0.05).round(3))
    0.95
    """
    events = np.asarray(count, dtype=np.float64)
    inside = np.minimum(events, of - 1)
    return np.where(events >= of, 1.0, special.betainccinv(inside + 1, of - inside, error_probability))


def errors_above(scores: Scores, thresholds: Floats) -> Errors:
    """The errors of the attack that says "member" of every score above the threshold."""
    at_most = np.searchsorted(np.sort(scores.others), thresholds, side="right")
    return Errors(
        false_positives=len(scores.others) - at_most,
        false_negatives=np.searchsorted(np.sort(scores.members), thresholds, side="right"),
        num_others=len(scores.others),
        num_members=len(scores.members),
    )
