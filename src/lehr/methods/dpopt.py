"""DPOPT. Xiang et al. (2019), "Differentially-Private Deep Learning from an Optimization Perspective".

Each coordinate of a gradient has a bound, and among all noise of the same privacy the one is used that moves the loss
least. The paper does not say where the bounds and the gradient for the shape come from; here both come from released
sums, as the bounds of ADADP do, which can be proven.
"""

from __future__ import annotations

from typing import Literal

from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import AdaptiveClip, ReleasedPrior
from lehr.privacy.noise import OptimisedNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def dpopt(
    *,
    learning_rate: float = 0.1,
    clip_norm: float = 4.0,
    bound_scale: float | None = None,
    memory: float = 0.99,
    found_by: Literal["closed-form", "projected-gradient"] = "closed-form",
    least_share: float = 0.1,
    momentum: float = 0.0,
    schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """Noise of the best shape, in closed form or by the paper's fifty steps of projected gradient descent."""
    return Method(
        name="dpopt",
        clipping=AdaptiveClip(clip_norm=clip_norm, prior=ReleasedPrior(memory=memory), bound_scale=bound_scale),
        noise=OptimisedNoise(found_by=found_by, memory=memory, least_share=least_share),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
