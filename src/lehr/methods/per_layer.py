"""DPSGD per layer. McMahan et al. (2018), "Learning Differentially Private Recurrent Language Models".

Each layer of a record's gradient is clipped to a bound of its own, and the whole sum is released at once: the squares
of the bounds add up to the square of one clip norm, which is what one record can do.
"""

from __future__ import annotations

from collections.abc import Mapping

from lehr.errors import InvalidValue
from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import PerLayerClip, with_schedule
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def dpsgd_per_layer(
    *,
    learning_rate: float = 0.5,
    clip_norm: float = 0.1,
    shares: Mapping[str, float] | None = None,
    momentum: float = 0.9,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """Every one of L layers is clipped to ``clip_norm / √L``, or in proportion to ``shares``, by the layers' names."""
    given: object = {} if shares is None else shares
    if not isinstance(given, Mapping):
        raise InvalidValue("shares", allowed="an object with a number for each layer", given=given)
    clip = PerLayerClip(clip_norm, shares=tuple(sorted(given.items())))
    return Method(
        name="dpsgd-per-layer",
        clipping=with_schedule(clip, clip_schedule),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
