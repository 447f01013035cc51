"""AUTO-S and AUTO-V. Bu et al. (2023), "Automatic Clipping: Differentially Private Deep Learning Made Easier and
Stronger".

Every record's gradient is scaled to nearly the same norm (AUTO-S), or to the very same (AUTO-V), so that there is no
threshold to tune.
"""

from __future__ import annotations

from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import AutomaticClip, with_schedule
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def auto_s(
    *,
    learning_rate: float = 0.5,
    clip_norm: float = 0.1,
    stability: float = 0.01,
    momentum: float = 0.9,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """DPSGD with each gradient scaled by ``clip_norm / (norm + stability)``. AUTO-V has a ``stability`` of zero."""
    return Method(
        name="auto-s",
        clipping=with_schedule(AutomaticClip(clip_norm, stability=stability), clip_schedule),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
