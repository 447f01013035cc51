"""DPSGD. Abadi et al. (2016), "Deep Learning with Differential Privacy".

Every record's gradient is clipped to a norm, Gaussian noise is added to the sum, and any optimizer takes the mean.
"""

from __future__ import annotations

from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import clip_rule, with_schedule
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def dpsgd(
    *,
    learning_rate: float = 0.5,
    clip_norm: float = 0.1,
    clip: str = "flat",
    momentum: float = 0.9,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """A clip rule by its name, isotropic noise, every step taken. ``update`` replaces SGD by another optimizer.

    The defaults suit a small tanh network on images; the learning rate acts on gradients of at most ``clip_norm``.
    """
    return Method(
        name="dpsgd",
        clipping=with_schedule(clip_rule(clip, clip_norm), clip_schedule),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
