"""A parameter that is used more than once: its gradients add up, so the products between the uses count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.contributions.lookup import Lookup
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.contributions.shared import Shared, sum_of
from lehr.interfaces import Contribution

_Kind = TypeVar("_Kind")


def together(uses: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter as one contribution, in the cheapest form that counts the products between them."""
    if len(uses) == 1:
        return uses[0]
    if outers := _all(uses, Outer):
        return _more_positions(outers)
    if lookups := _all(uses, Lookup):
        return _more_lookups(lookups)
    if _all(uses, Materialised):
        return Materialised(sum_of(uses))
    if (images := _all(uses, Convolved)) and len({_size(use) for use in images}) == 1:
        return _more_views(images)
    return Shared(tuple(uses))


def _all(uses: Sequence[Contribution], kind: type[_Kind]) -> list[_Kind]:
    """The uses, if all are of the one kind, or nothing."""
    matching: list[_Kind] = [use for use in uses if isinstance(use, kind)]
    return matching if len(matching) == len(uses) else []


def _more_positions(uses: Sequence[Outer]) -> Outer:
    return Outer(
        torch.cat([use.output_grads_BTO for use in uses], dim=1), torch.cat([use.inputs_BTI for use in uses], dim=1)
    )


def _more_lookups(uses: Sequence[Lookup]) -> Lookup:
    return Lookup(
        torch.cat([use.rows_BT for use in uses], dim=1),
        torch.cat([use.output_grads_BTD for use in uses], dim=1),
        uses[0].num_rows,
    )


def _size(use: Convolved) -> tuple[object, ...]:
    return use.geometry, use.inputs_NCS.shape[1:], use.output_grads_NOP.shape[1:]


def _more_views(uses: Sequence[Convolved]) -> Convolved:
    """To the weight a second use on images of the same size is one more view of the record."""
    records = uses[0].records
    inputs, output_grads = (
        torch.cat([values.view(records, use.views, *values.shape[1:]) for use, values in column], dim=1)
        for column in ([(use, use.inputs_NCS) for use in uses], [(use, use.output_grads_NOP) for use in uses])
    )
    return Convolved(inputs.flatten(0, 1), output_grads.flatten(0, 1), uses[0].geometry, records)
