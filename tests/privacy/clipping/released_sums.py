"""Released sums of one parameter, and a prior that has learnt from some: what several tests here begin with."""

from __future__ import annotations

import torch
from torch import Tensor

from lehr.interfaces import ReleasedSum, SlotState
from lehr.privacy.clipping import Prior


def released(*values: float, noise_std: float | dict[str, Tensor] = 0.0) -> ReleasedSum:
    return ReleasedSum(values={"weight": torch.tensor(values, dtype=torch.float64)}, noise_std=noise_std)


def learnt(prior: Prior, *sums: ReleasedSum, divisor: float = 1.0) -> SlotState:
    state = prior.start({"weight": torch.zeros(len(sums[0].values["weight"]))})
    for each in sums:
        state = prior.learn(state, each, divisor=divisor)
    return state
