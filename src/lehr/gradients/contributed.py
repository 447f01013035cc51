"""Record gradients that stand as contributions: norms from each, sums from each, nothing stored in between.

Axes: B records, G groups of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from lehr.gradients.grouping import checked_groups, weight_of_each
from lehr.gradients.products import uncast
from lehr.interfaces import Contribution, Groups


class ContributedGradients:
    """What the ghost engine and the hooked engine hand to a clip rule.

    ``kept(name, sum)`` is called with each parameter's sum as soon as it is there, and what it returns takes its place.
    With a ``scale``, a record's gradient is so many times what the contributions say: norms and weights take it in, and
    no contribution is gone through for it.
    """

    def __init__(
        self,
        contributions: Mapping[str, Contribution],
        *,
        mask_B: Tensor,  # noqa: N803
        margin: float,
        kept: Callable[[str, Tensor], Tensor] | None = None,
        scale: float = 1.0,
    ) -> None:
        self._contributions, self._scale = contributions, scale
        self._kept = kept or _all_of_it
        with uncast(mask_B.device):
            self._squared = {name: part.squared_norms() for name, part in contributions.items()}
        self._margin = margin
        # A record with a gradient that is not finite, in whatever parameter, counts as zero in all of them.
        self._counted_B = mask_B & torch.stack(tuple(self._squared.values())).sum(0).isfinite()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._contributions)

    @property
    def margin(self) -> float:
        return self._margin

    def norms(self, groups: Groups | None = None) -> Tensor:
        norms = [self._norms(group) for group in checked_groups(groups, names=self.names)]
        return norms[0] if groups is None else torch.stack(norms, dim=1)

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        weight_of = weight_of_each(
            weights, groups, names=self.names, num_records=len(self._counted_B), scale=self._scale
        )
        with uncast(self._counted_B.device):
            return self._sums(weight_of)

    def _sums(self, weight_of: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            # In the parameter's own memory order, so that noise and update can go through all of it at once.
            name: self._kept(name, part.weighted_sum(weight_of[name], self._counted_B).double().contiguous())
            for name, part in self._contributions.items()
        }

    def _norms(self, names: Sequence[str]) -> Tensor:
        squared = torch.stack([self._squared[name] for name in names]).sum(0)
        return torch.where(self._counted_B, squared.sqrt() * self._scale, 0)


def _all_of_it(name: str, whole: Tensor) -> Tensor:
    return whole
