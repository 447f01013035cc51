"""ADADP, ADAN and ADAL. Xu et al. (2020), "An Adaptive and Fast Convergent Approach to Differentially Private Deep
Learning".

Each coordinate of a gradient is clipped to a bound that follows how large it has been, and gets noise in proportion to
that bound (ADAN); the step is RMSProp's (ADAL); ADADP does both. The paper takes the bounds from gradients without
noise. No ε follows from that (``privacy/clipping.proof.md``); here they come from released sums.
"""

from __future__ import annotations

from typing import Literal

from lehr import validate
from lehr.accounting.claims import PublishedRule, published_rule
from lehr.optim.optimizers import Update, sgd
from lehr.privacy.clipping import RAW, AdaptiveClip, FlatClip, Prior, RawPrior, ReleasedPrior
from lehr.privacy.noise import IsotropicNoise, ProportionalNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule

PUBLISHED = PublishedRule(
    paper="ADADP (Xu et al. 2020)",
    theorem="Theorem 1, for noise whose shape is fixed beforehand",
    because=RAW,
    shown_in="docs/published_claims.md",
)


def adadp(
    *,
    learning_rate: float = 0.002,
    clip_norm: float = 4.0,
    bound_scale: float | None = None,
    memory: float | None = None,
    decay: float = 0.9,
    schedule: Schedule = CONSTANT,
    accounting: Literal["proven", "published"] = "proven",
) -> Method:
    """Both parts. ``memory`` is that of the prior, ``decay`` that of RMSProp.

    The bounds of all coordinates have the norm ``clip_norm`` together, unless a ``bound_scale`` is given, the paper's
    β: in the published form it is 1.2.
    """
    return Method(
        name="adadp",
        clipping=_clip(clip_norm, bound_scale, memory, accounting),
        noise=ProportionalNoise(),
        update=_rmsprop(learning_rate, decay, schedule),
        published=published_rule(PUBLISHED, accounting),
    )


def adan(
    *,
    learning_rate: float = 0.1,
    clip_norm: float = 4.0,
    bound_scale: float | None = None,
    memory: float | None = None,
    momentum: float = 0.0,
    schedule: Schedule = CONSTANT,
    accounting: Literal["proven", "published"] = "proven",
) -> Method:
    """The noise alone: bounds and noise by coordinates, with the steps of SGD."""
    return Method(
        name="adan",
        clipping=_clip(clip_norm, bound_scale, memory, accounting),
        noise=ProportionalNoise(),
        update=sgd(learning_rate, momentum=momentum, schedule=schedule),
        published=published_rule(PUBLISHED, accounting),
    )


def adal(
    *,
    learning_rate: float = 0.001,
    clip_norm: float = 4.0,
    decay: float = 0.9,
    schedule: Schedule = CONSTANT,
) -> Method:
    """The learning rate alone: DPSGD with the steps of RMSProp. Nothing about its privacy is in doubt."""
    return Method(
        name="adal",
        clipping=FlatClip(clip_norm),
        noise=IsotropicNoise(),
        update=_rmsprop(learning_rate, decay, schedule),
    )


def _clip(clip_norm: float, bound_scale: float | None, memory: float | None, accounting: str) -> AdaptiveClip:
    is_published = published_rule(PUBLISHED, accounting) is not None
    if is_published and bound_scale is None:
        bound_scale = 1.2
    kind = RawPrior if is_published else ReleasedPrior
    prior: Prior = kind() if memory is None else kind(memory=memory)
    return AdaptiveClip(clip_norm=clip_norm, prior=prior, bound_scale=bound_scale)


def _rmsprop(learning_rate: float, decay: float, schedule: Schedule) -> Update:
    return Update(
        optimizer="rmsprop",
        learning_rate=learning_rate,
        arguments={"alpha": validate.delta(decay=decay)},
        schedule=schedule,
    )
