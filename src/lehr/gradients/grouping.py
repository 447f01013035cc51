"""Groups of parameters and weights for them: every parameter is in exactly one group and has exactly one weight.

A parameter that no group names would be left out of a norm, or have no bound; one that two name would have two.
Axes: B records, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lehr.errors import InvalidValue
from lehr.interfaces import Groups


def checked_groups(groups: Groups | None, *, names: Sequence[str]) -> Groups:
    """The groups themselves; with none, one that has every parameter."""
    if groups is None:
        return [names]
    named = [name for group in groups for name in group]
    if sorted(named) != sorted(names):
        raise InvalidValue("groups", allowed=f"such that each of {list(names)} is named once", given=groups)
    return groups


def weight_of_each(
    weights: Tensor, groups: Groups | None, *, names: Sequence[str], num_records: int, scale: float = 1.0
) -> dict[str, Tensor]:
    """The weights of all records, ``weights_B``, for every parameter, each times the scale."""
    whole = checked_groups(groups, names=names)
    shape = (num_records,) if groups is None else (num_records, len(whole))
    given: object = weights
    if not isinstance(given, Tensor) or given.shape != shape:
        allowed = f"a tensor of shape {shape}, one for each record" + ("" if groups is None else " and group")
        raise InvalidValue("weights", allowed=allowed, given=tuple(given.shape) if isinstance(given, Tensor) else given)
    weights_BG = weights.reshape(num_records, len(whole)) * scale  # noqa: N806
    return {name: own for own, group in zip(weights_BG.unbind(1), whole, strict=True) for name in group}
