"""DPOPT's noise: least where it hurts the loss most.

Xiang et al. (2019), "Differentially-Private Deep Learning from an Optimization Perspective". To first order, noise of
standard deviations σ_i moves the loss by a number of variance Σ c_i² σ_i², where c is the gradient. Under
Σ s_i² / σ_i² ≤ 1 / σ² that is least for σ_i² in proportion to s_i / |c_i|. The gradient is taken from what was
released before, and floored; both is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lehr import validate
from lehr.interfaces import SlotState, Taken, Tensors
from lehr.noise.shaped import ShapedNoise

_WAYS = ("closed-form", "projected-gradient")


@dataclass(frozen=True, kw_only=True)
class OptimisedNoise(ShapedNoise):
    """Noise shaped by an optimum, found in closed form or, as the paper does, by projected gradient descent.

    ``memory`` is that of the running mean of released gradients; a coordinate's gradient counts as at least
    ``least_share`` of their root mean square.
    """

    found_by: Literal["closed-form", "projected-gradient"] = "closed-form"
    memory: float = 0.9
    least_share: float = 0.1

    def __post_init__(self) -> None:
        validate.one_of(_WAYS, found_by=self.found_by)
        validate.delta(memory=self.memory)
        validate.delta(least_share=self.least_share)

    def start(self, parameters: Tensors) -> SlotState:
        return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in parameters.items()}

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        seen = taken.released.values
        return {
            name: self.memory * mean + (1 - self.memory) * seen[name].double() / taken.divisor
            for name, mean in state.items()
        }

    def shape(self, bounds: Tensors, state: SlotState) -> Tensors:
        slopes = self.slopes(state, bounds)
        return closed_form(bounds, slopes) if self.found_by == "closed-form" else projected_gradient(bounds, slopes)

    def slopes(self, state: SlotState, like: Tensors) -> dict[str, Tensor]:
        """The size of each coordinate's gradient, floored; all the same where nothing is known."""
        known = {name: value.abs() for name, value in state.items() if isinstance(value, Tensor)}
        whole = sum(float(value.square().sum()) for value in known.values())
        if not 0 < whole < math.inf:  # nothing is known, or the run has diverged
            return {name: torch.ones_like(value, dtype=torch.float64) for name, value in like.items()}
        root_mean_square = (whole / sum(value.numel() for value in known.values())) ** 0.5
        return {name: value.clamp_min(self.least_share * root_mean_square) for name, value in known.items()}


def closed_form(bounds: Tensors, slopes: Tensors) -> dict[str, Tensor]:
    """The best shape: σ_i in proportion to √(s_i / |c_i|)."""
    return {name: (bounds[name] / slopes[name]).sqrt() for name in bounds}


def projected_gradient(
    bounds: Tensors, slopes: Tensors, *, steps: int = 50, step_size: float = 0.5
) -> dict[str, Tensor]:
    """The paper's way: so many steps down the variance, each followed by a projection to the constraint.

    Written in the shares y_i = s_i² σ² / σ_i² the constraint is Σ y_i = 1, and the variance Σ (c_i s_i)² / y_i up to a
    constant. The steps are exponentiated ones, whose projection is a division, and no share can turn negative.
    """
    importance = {name: slopes[name] * bounds[name] for name in bounds}
    shares = _projected({name: torch.ones_like(bound) for name, bound in bounds.items()}, bounds)
    for _ in range(steps):
        gains = {name: (importance[name] / shares[name]).nan_to_num(0.0).square() for name in bounds}
        mean = math.fsum(float((shares[name] * gains[name]).sum()) for name in bounds)
        moved = {name: shares[name] * torch.exp(step_size * (gains[name] / mean - 1).clamp_max(1.0)) for name in bounds}
        shares = _projected(moved, bounds)
    return {name: (bounds[name] / shares[name].sqrt()).nan_to_num(0.0) for name in bounds}


def _projected(shares: Tensors, bounds: Tensors) -> dict[str, Tensor]:
    """Shares that add up to one, of the coordinates that can move."""
    moving = {name: torch.where(bounds[name] > 0, share, 0.0) for name, share in shares.items()}
    whole = math.fsum(float(share.sum()) for share in moving.values())
    return {name: share / whole for name, share in moving.items()}
