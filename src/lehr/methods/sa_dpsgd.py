"""SA-DPSGD. Fu et al. (2022), "SA-DPSGD: Differentially Private Stochastic Gradient Descent based on Simulated
Annealing".

A candidate of DPSGD is accepted if the loss on public records falls, and otherwise with a probability that shrinks as
training goes on. Every candidate is charged, accepted or not, and their number is the plan's. The paper charges
accepted candidates only, which is no guarantee (``acceptance/annealed.proof.md``).

With ``salvage`` a rejected gradient is averaged with the next at the same weights, and with ``step_scales`` several
step sizes of one gradient are tried: both are post-processing, and cost nothing. So is ``keeps_momentum``: a rejection
restores the weights alone, as the code of DPSUR (Fu et al. 2024) does, by two of the three authors; the paper does not
say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from lehr import validate
from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Acceptance, EnergyOfOne, PublicEnergy
from lehr.acceptance.rules import BestStep, Salvage
from lehr.accounting.claims import PublishedRule, published_rule
from lehr.config import CLIP_NORM, LEARNING_RATE, MOMENTUM
from lehr.errors import InvalidValue
from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import FlatClip, with_schedule
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule

PUBLISHED = PublishedRule(
    paper="SA-DPSGD (Fu et al. 2022)",
    theorem="Theorem 1: candidates that are not accepted cost nothing",
    because="which candidates are released depends on the data, and a selected one is not Gaussian noise on a sum",
    shown_in="docs/published_claims.md",
    counts_accepted_only=True,
)
# One more premise is broken: rejected gradients must not be used.
PUBLISHED_WITH_MOMENTUM_KEPT = replace(
    PUBLISHED, because=f"{PUBLISHED.because}; here rejected gradients also stay in the momentum, and are not charged"
)


def sa_dpsgd(
    *,
    learning_rate: float = LEARNING_RATE,
    clip_norm: float = CLIP_NORM,
    momentum: float = MOMENTUM,
    initial_inverse_temperature: float = 10.0,
    rejection_threshold: int = 10,
    cooling: Literal["accepted", "floored", "classic"] = "accepted",
    cooling_rate: float | None = None,
    energy: EnergyOfOne | None = None,
    salvage: bool = False,
    keeps_momentum: bool = False,
    step_scales: Sequence[float] = (),
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
    accounting: Literal["proven", "published"] = "proven",
) -> Method:
    """DPSGD with annealed acceptance by public records, which are then not scored on, or by a ``PrivateEnergy``."""
    annealed = Annealed(
        initial_inverse_temperature=initial_inverse_temperature,
        rejection_threshold=rejection_threshold,
        cooling=cooling,
        cooling_rate=cooling_rate,
        keeps_momentum=keeps_momentum,
        energy=energy or PublicEnergy(),
    )
    acceptance: Acceptance = Salvage(annealed) if validate.true_or_false(salvage=salvage) else annealed
    if salvage and keeps_momentum:
        allowed = "false with salvage: a rejected gradient is used again once, by the mean or by the momentum"
        raise InvalidValue("keeps_momentum", allowed=allowed, given=keeps_momentum)
    if keeps_momentum and update is None and momentum == 0:
        raise InvalidValue("keeps_momentum", allowed="false where momentum is 0", given=keeps_momentum)
    if step_scales:
        acceptance = BestStep(acceptance, step_scales)
    published = published_rule(PUBLISHED_WITH_MOMENTUM_KEPT if keeps_momentum else PUBLISHED, accounting)
    if published is not None and acceptance is not annealed:
        allowed = "proven where rejected gradients are used: the paper's rule has no place for that"
        raise InvalidValue("accounting", allowed=allowed, given=accounting)
    return Method(
        name="sa-dpsgd",
        clipping=with_schedule(FlatClip(clip_norm), clip_schedule),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
        acceptance=acceptance,
        published=published,
    )
