"""Many small runs at once through the library's own sampler, clip and noise: half with a target record, half without.

A run has one weight, and that weight is one coordinate of a long vector. A record's gradient is zero but for the
coordinate of its run, so that clipping it alone and clipping it within the vector are the same; the sampler throws a
coin for every record of every run; and the noise of the coordinates is independent. What is released for the vector is
therefore what each of the runs would have released by itself. Axes: B drawn records, R runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lehr.auditing import Scores
from lehr.extend import FlatClip, Groups, IsotropicNoise, PrivateSum, RunKey, StepRandomness

# Fixed, since the records are made up and the figures are to be repeated. The settings of the attacks were chosen under
# another key: a confidence holds for scores that had no part in choosing what they are scores of.
KEY = RunKey(b"for the figures, and tried once.")
CLIP_NORM = 1.0
_WEIGHT = "weight of every run"


@dataclass(frozen=True, eq=False)
class Drawn:
    """The gradients of the records that were drawn, each along the coordinate of its run."""

    run_B: Tensor  # noqa: N815
    grads_B: Tensor  # noqa: N815
    num_runs: int

    names = (_WEIGHT,)
    margin = 0.0

    @cached_property
    def sizes_R(self) -> Tensor:  # noqa: N802
        """How many records each run drew."""
        return torch.bincount(self.run_B, minlength=self.num_runs)

    def norms(self, groups: Groups | None = None) -> Tensor:
        return self.grads_B.abs()

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        sums_R = torch.zeros(self.num_runs, dtype=torch.float64)
        return {_WEIGHT: sums_R.index_add_(0, self.run_B, weights * self.grads_B)}


@dataclass(frozen=True, kw_only=True)
class Runs:
    """As many runs on a data set as on its neighbour, which has one record more: the target.

    The first half of the runs have it. Every run holds ``num_others`` other records, all with the same gradient.
    """

    num_each: int
    num_others: int = 0
    others_gradient: float = 0.0
    target_gradient: float = CLIP_NORM

    @property
    def num_runs(self) -> int:
        return 2 * self.num_each

    @cached_property
    def run_of(self) -> Tensor:
        """The run of every record: the targets first, then the others, run by run."""
        return torch.cat([torch.arange(self.num_each), torch.arange(self.num_runs).repeat_interleave(self.num_others)])

    @cached_property
    def gradient_of(self) -> Tensor:
        gradients = torch.full((len(self.run_of),), self.others_gradient, dtype=torch.float64)
        gradients[: self.num_each] = self.target_gradient
        return gradients

    def drawn(self, indices_B: Tensor) -> Drawn:
        """The gradients of the records at these places."""
        return Drawn(self.run_of[indices_B], self.gradient_of[indices_B], self.num_runs)

    def scores(self, scores_R: Tensor) -> Scores:
        """A score of every run, those with the target against those without."""
        return Scores(members=scores_R[: self.num_each].numpy(), others=scores_R[self.num_each :].numpy())


def clipped(drawn: Drawn) -> PrivateSum:
    """The sum of every run, by the library's own clip."""
    return FlatClip(CLIP_NORM)(drawn)


def released(private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness) -> Tensor:
    """The sum of every run with its noise, by the library's own noise."""
    noisy = IsotropicNoise().release(private, noise_multiplier=noise_multiplier, randomness=randomness)
    return noisy.values[_WEIGHT]
