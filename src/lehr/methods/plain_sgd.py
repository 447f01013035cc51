"""SGD without privacy, in the same loop, for comparison. Nothing is proven about it, and it has no certificate."""

from __future__ import annotations

from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import Unclipped
from lehr.privacy.noise import NoNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def plain_sgd(
    *,
    learning_rate: float = 0.05,
    momentum: float = 0.9,
    schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """Gradients as they are: no clip, no noise, no ε. ``fit`` then takes ``steps`` and neither ε nor δ."""
    return Method(
        name="plain-sgd",
        clipping=Unclipped(),
        noise=NoNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
