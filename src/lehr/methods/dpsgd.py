"""DPSGD (Abadi et al. 2016, "Deep Learning with Differential Privacy") and its relatives, which clip in other ways.

Every record's gradient is clipped to a norm, Gaussian noise is added to the sum, and any optimizer takes the mean.
``update`` replaces SGD by another optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping

from lehr.accounting.events import FLOAT
from lehr.config import CLIP_NORM, LEARNING_RATE, MOMENTUM
from lehr.errors import InvalidValue
from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import AutomaticClip, PerLayerClip, Unclipped, clipping_by_name, with_schedule
from lehr.privacy.noise import NoNoise, isotropic_noise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule


def dpsgd(
    *,
    learning_rate: float = LEARNING_RATE,
    clip_norm: float = CLIP_NORM,
    clip: str = "flat",
    target_quantile: float | None = None,
    momentum: float = MOMENTUM,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    noise: str = FLOAT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """A clip rule by its name, isotropic noise, every step accepted.

    With ``noise="discrete"`` sums are rounded to integers and get exactly rounded Gaussian noise. The defaults suit a
    small tanh network on images; the learning rate acts on gradients of at most ``clip_norm``. With
    ``clip="quantile"`` that is the clip norm of the first step, and it follows the ``target_quantile`` of gradient
    norms, by default the median.
    """
    return Method(
        name="dpsgd",
        clipping=clipping_by_name(clip, clip_norm, schedule=clip_schedule, target_quantile=target_quantile),
        noise=isotropic_noise(noise),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )


def dpsgd_per_layer(
    *,
    learning_rate: float = LEARNING_RATE,
    clip_norm: float = CLIP_NORM,
    shares: Mapping[str, float] | None = None,
    momentum: float = MOMENTUM,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    noise: str = FLOAT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """Every one of L layers is clipped to ``clip_norm / √L``, or in proportion to ``shares``, by the layers' names.

    McMahan et al. (2018), "Learning Differentially Private Recurrent Language Models". The squares of the bounds add up
    to the square of ``clip_norm``, which is the sensitivity.
    """
    given: object = {} if shares is None else shares
    if not isinstance(given, Mapping):
        raise InvalidValue("shares", allowed="an object with a number for each layer", given=given)
    clip = PerLayerClip(clip_norm, shares=tuple(sorted(given.items())))
    return Method(
        name="dpsgd-per-layer",
        clipping=with_schedule(clip, clip_schedule),
        noise=isotropic_noise(noise),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )


def auto_s(
    *,
    learning_rate: float = LEARNING_RATE,
    clip_norm: float = CLIP_NORM,
    stability: float = 0.01,
    momentum: float = MOMENTUM,
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    noise: str = FLOAT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """Each gradient is scaled by ``clip_norm / (norm + stability)``, so there is no threshold to tune.

    Bu et al. (2023), "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger". With a
    ``stability`` of zero it is AUTO-V.
    """
    return Method(
        name="auto-s",
        clipping=with_schedule(AutomaticClip(clip_norm, stability=stability), clip_schedule),
        noise=isotropic_noise(noise),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )


def plain_sgd(
    *,
    learning_rate: float = 0.05,
    momentum: float = MOMENTUM,
    schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """SGD without privacy, in the same loop, for comparison: no clip, no noise, no ε, no certificate.

    ``fit`` then takes ``steps`` and neither ε nor δ.
    """
    return Method(
        name="plain-sgd",
        clipping=Unclipped(),
        noise=NoNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
    )
