"""The total amount of noise of a plan (Sander, Stock & Sablayrolles 2023), and where the plan stands because of it.

η of a step is q/(√2·σ), η of a run is √steps times that, and the total amount of noise is 1/η. The ε that follows from
η alone is an estimate, fair for noise multipliers above 2. Below lies what the paper calls the privacy wall: at the
same η, ε grows fast as the noise multiplier falls. Every ε that decides something here is the tight one.

>>> plan = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_281_167, steps=72_000, delta=8e-7)
>>> stands = standing(plan)
>>> print(f"{stands.epsilon:.3f} tight, {stands.epsilon_estimate:.3f} estimated")
7.465 tight, 8.215 estimated
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lehr import validate
from lehr.accounting.accountant import ACCOUNTANTS, bound
from lehr.accounting.calibration import Target, smallest_noise_multiplier
from lehr.accounting.last_within import last_within
from lehr.errors import AccountantFailed, InvalidValue, Unreachable
from lehr.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated
from lehr.planning.plan import Plan

AN_ESTIMATE = "an estimate, not a guarantee"
FAIR_FROM = 2.0  # the noise multiplier above which the paper finds its estimate fair
WALL = 0.1  # the share above the large-noise limit at which the wall is said to begin
TIGHT = "pld"
_PAPERS_OWN = "rdp-balle20"


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalNoise:
    """The signal of one record over the noise, in a run of equal steps."""

    eta_step: float
    steps: int

    @property
    def eta(self) -> float:
        """η of the whole run, what the estimate of ε depends on."""
        return math.sqrt(self.steps) * self.eta_step

    @property
    def total_noise(self) -> float:
        """The total amount of noise, 1/η."""
        return 1 / self.eta

    @property
    def signal(self) -> float:
        """q·√steps/σ, which is √2·η: the same in the units in which full batches are Gaussian noise of 1/signal."""
        return math.sqrt(2) * self.eta

    def sampling_probability(self, noise_multiplier: float, *, steps: int | None = None) -> float:
        """The q that gives the same η with another noise multiplier, at these steps or others; it can pass one."""
        return self.signal * noise_multiplier / math.sqrt(self.steps if steps is None else steps)


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """The ε of one run: the tight one, which decides, and two to compare it with."""

    epsilon: float
    accountant: str
    epsilon_estimate: float
    epsilon_balle20: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a plan stands: its η, its ε by three rules, the least ε at that η, and the wall."""

    total: TotalNoise
    noise_multiplier: float
    delta: float
    epsilon: float
    accountant: str
    epsilon_estimate: float
    epsilon_balle20: float
    epsilon_limit: float  # the tight ε of full batches at the same η: what large noise comes down to
    wall: float | None  # none where none is found
    tolerance: float
    ceiling: float  # the largest signal that this ε and δ allow

    @property
    def is_estimate_fair(self) -> bool:
        """Whether the noise is large enough for the estimate, by the paper's rule of thumb."""
        return self.noise_multiplier >= FAIR_FROM

    @property
    def estimate_off(self) -> float:
        """How far the estimate lies above the tight ε, as a share of it; below zero where it is too low."""
        return self.epsilon_estimate / self.epsilon - 1

    @property
    def balle20_off(self) -> float:
        """The same for the accountant that the paper reports."""
        return self.epsilon_balle20 / self.epsilon - 1

    @property
    def above_limit(self) -> float:
        """What the plan pays above the large-noise limit of its η, as a share."""
        return self.epsilon / self.epsilon_limit - 1

    @property
    def is_clear_of_wall(self) -> bool:
        """Whether the plan pays at most the tolerance above that limit."""
        return self.above_limit <= self.tolerance

    @property
    def share_of_ceiling(self) -> float:
        """The plan's signal over the largest that its ε allows."""
        return min(1.0, self.total.signal / self.ceiling)  # the ceiling is found to a small share of itself

    def to_json(self) -> dict[str, object]:
        """The JSON form, with the numbers that follow from the others."""
        return {
            "eta_step": self.total.eta_step,
            "eta": self.total.eta,
            "total_noise": self.total.total_noise,
            "signal": self.total.signal,
            "epsilon": self.epsilon,
            "accountant": self.accountant,
            "epsilon_tan": {"value": self.epsilon_estimate, "standing": AN_ESTIMATE, "off": self.estimate_off},
            "epsilon_balle20": {"value": self.epsilon_balle20, "off": self.balle20_off},
            "epsilon_large_noise": self.epsilon_limit,
            "wall": {
                "noise_multiplier": self.wall,
                "tolerance": self.tolerance,
                "above_limit": self.above_limit,
                "is_clear": self.is_clear_of_wall,
            },
            "largest_signal": self.ceiling,
            "share_of_largest_signal": self.share_of_ceiling,
            "is_estimate_fair": self.is_estimate_fair,
        }


def total_noise(plan: Plan) -> TotalNoise:
    """η of a plan of equal Poisson-sampled steps; any other plan is refused."""
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise InvalidValue(
            "adjacency", allowed="add-or-remove-one for the total amount of noise", given=plan.adjacency.value
        )
    if not plan.has_equal_steps:
        allowed = "one of equal steps, without a schedule, a question or a limit, for the total amount of noise"
        raise InvalidValue("plan", allowed=allowed, given=str(plan.event))
    if not plan.noise_multiplier > 0:
        raise InvalidValue(
            "noise_multiplier", allowed="a finite number > 0 for the total amount of noise", given=plan.noise_multiplier
        )
    eta_step = plan.sampling_probability / (math.sqrt(2) * plan.noise_multiplier)
    return TotalNoise(eta_step=eta_step, steps=plan.steps)


def standing(plan: Plan, *, tolerance: float = WALL) -> Standing:
    """Where the plan stands. A plan whose δ alone covers it has no ε to compare, and is refused."""
    total = total_noise(plan)
    price = priced(plan.event, delta=plan.delta)
    limit = large_noise_epsilon(total.signal, delta=plan.delta)
    if not 0 < limit < math.inf or not 0 < price.epsilon < math.inf:
        raise InvalidValue("plan", allowed="one that costs an ε above 0 and below infinity", given=price.epsilon)
    return Standing(
        total=total,
        noise_multiplier=plan.noise_multiplier,
        delta=plan.delta,
        epsilon=price.epsilon,
        accountant=price.accountant,
        epsilon_estimate=price.epsilon_estimate,
        epsilon_balle20=price.epsilon_balle20,
        epsilon_limit=limit,
        wall=wall(total, delta=plan.delta, tolerance=tolerance),
        tolerance=tolerance,
        ceiling=largest_signal(epsilon=price.epsilon, delta=plan.delta),
    )


def run_at(total: TotalNoise, noise_multiplier: float, *, steps: int | None = None) -> Event:
    """The run of the same η at another noise multiplier; full batches where more would be needed."""
    probability = min(1.0, total.sampling_probability(noise_multiplier, steps=steps))
    return Repeated(PoissonSampled(probability, Gaussian(noise_multiplier)), total.steps if steps is None else steps)


def priced(event: Event, *, delta: float) -> Priced:
    """The ε of a run by the tight accountant, by the estimate, and by the accountant of the paper."""
    best = bound(event, delta=delta)
    return Priced(
        epsilon=best.epsilon,
        accountant=best.accountant,
        epsilon_estimate=estimated_epsilon(event, delta=delta),
        epsilon_balle20=balle20_epsilon(event, delta=delta),
    )


def tight_epsilon(event: Event, *, delta: float) -> float:
    """ε by the tight accountant alone, which is quicker than by all; by the best of the others where it gives up."""
    try:
        return ACCOUNTANTS[TIGHT].epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    except AccountantFailed:
        return bound(event, delta=delta).epsilon


def estimated_epsilon(event: Event, *, delta: float) -> float:
    """What η alone says: an estimate, not a guarantee."""
    return ACCOUNTANTS["tan"].epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def balle20_epsilon(event: Event, *, delta: float) -> float:
    """ε by the accountant that the paper reports."""
    return ACCOUNTANTS[_PAPERS_OWN].epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def large_noise_epsilon(signal: float, *, delta: float) -> float:
    """The tight ε of full batches with this signal: steps no longer matter, and it is one release of a Gaussian."""
    return tight_epsilon(Gaussian(1 / validate.positive(signal=signal)), delta=delta)


def wall(total: TotalNoise, *, delta: float, tolerance: float = WALL) -> float | None:
    """The smallest noise multiplier, at this η and these steps, whose tight ε is within the tolerance of the limit."""
    limit = large_noise_epsilon(total.signal, delta=delta)
    target = Target((1 + validate.positive(tolerance=tolerance)) * limit, delta, accountant=TIGHT)
    try:
        return smallest_noise_multiplier(lambda sigma: run_at(total, sigma), target)
    except (Unreachable, AccountantFailed):
        return None


def largest_signal(*, epsilon: float, delta: float) -> float:
    """The largest q·√steps/σ that (ε, δ) allows, which full batches reach and smaller ones come near.

    >>> print(f"{largest_signal(epsilon=3.0, delta=1e-5):.3f}")
    0.719
    """
    target = Target(epsilon, delta, accountant=TIGHT)
    found = last_within(lambda sigma: target.log_ratio(Gaussian(sigma)), safe_end=1e9, other_end=2e-3, start=1.0)
    if found is None:
        raise Unreachable(f"epsilon {epsilon:g} at delta {delta:g} allows no signal that could be counted")
    return 1 / found
