"""Total amount of noise, TAN (Sander, Stock & Sablayrolles 2023): a plan's η, other settings at its ε, two figures.

η of a step is q/(√2·σ), η of a run is √steps times that, and the total amount of noise is 1/η. The ε that follows from
η alone is an estimate, fair for noise multipliers above 2. Below lies what the paper calls the privacy wall: at the
same η, ε grows fast as the noise multiplier falls. Every ε that decides something here is the tight one.

>>> plan = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_281_167, steps=72_000, delta=8e-7)
>>> found = analyse(plan)
>>> print(f"{found.epsilon:.3f} tight, {found.epsilon_estimate:.3f} estimated")
7.465 tight, 8.215 estimated

Other settings are compared by their signal, q·√steps/σ, and by their cost, the records that are looked at. None costs
more ε than the plan, by the tight accountant. The figures are Figures 2 and 3 of the paper, for a plan of one's own: ε
at constant η, and the Rényi divergence of a step over its approximation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from lehr import validate
from lehr.accounting.accountant import ACCOUNTANTS, bound
from lehr.accounting.calibration import Target, last_within, smallest_noise_multiplier
from lehr.accounting.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated
from lehr.accounting.rdp import renyi_divergences
from lehr.errors import AccountantFailed, InvalidValue, Unreachable
from lehr.planning.plan import Plan, make_plan

AN_ESTIMATE = "an estimate, not a guarantee"
FAIR_FROM = 2.0  # the noise multiplier above which the paper finds its estimate fair
WALL = 0.1  # the share above the large-noise limit at which the wall is said to begin
TIGHT = "pld"


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
class TanAnalysis:
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
        wall = {"noise_multiplier": self.wall, "tolerance": self.tolerance, "above_limit": self.above_limit}
        return {
            **{name: getattr(self.total, name) for name in ("eta_step", "eta", "total_noise", "signal")},
            "epsilon": self.epsilon,
            "accountant": self.accountant,
            "epsilon_tan": {"value": self.epsilon_estimate, "standing": AN_ESTIMATE, "off": self.estimate_off},
            "epsilon_balle20": {"value": self.epsilon_balle20, "off": self.balle20_off},
            "epsilon_large_noise": self.epsilon_limit,
            "wall": {**wall, "is_clear": self.is_clear_of_wall},
            "largest_signal": self.ceiling,
            "share_of_largest_signal": self.share_of_ceiling,
            "is_estimate_fair": self.is_estimate_fair,
        }


def total_noise(plan: Plan) -> TotalNoise:
    """η of a plan of equal Poisson-sampled steps; any other plan is refused."""
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        allowed = "add-or-remove-one for the total amount of noise"
        raise InvalidValue("adjacency", allowed=allowed, given=plan.adjacency.value)
    if not plan.has_equal_steps:
        allowed = "one of equal steps, without a schedule, a question or a limit, for the total amount of noise"
        raise InvalidValue("plan", allowed=allowed, given=str(plan.event))
    if not plan.noise_multiplier > 0:
        allowed = "a finite number > 0 for the total amount of noise"
        raise InvalidValue("noise_multiplier", allowed=allowed, given=plan.noise_multiplier)
    eta_step = plan.sampling_probability / (math.sqrt(2) * plan.noise_multiplier)
    return TotalNoise(eta_step=eta_step, steps=plan.steps)


def analyse(plan: Plan, *, tolerance: float = WALL) -> TanAnalysis:
    """Where the plan stands. A plan whose δ alone covers it has no ε to compare, and is refused."""
    total = total_noise(plan)
    best = plan.bound()
    limit = large_noise_epsilon(total.signal, delta=plan.delta)
    if not 0 < limit < math.inf or not 0 < best.epsilon < math.inf:
        raise InvalidValue("plan", allowed="one that costs an ε above 0 and below infinity", given=best.epsilon)
    return TanAnalysis(
        total=total,
        noise_multiplier=plan.noise_multiplier,
        delta=plan.delta,
        epsilon=best.epsilon,
        accountant=best.accountant,
        epsilon_estimate=estimated_epsilon(plan.event, delta=plan.delta),
        epsilon_balle20=balle20_epsilon(plan.event, delta=plan.delta),
        epsilon_limit=limit,
        wall=privacy_wall(total, delta=plan.delta, tolerance=tolerance),
        tolerance=tolerance,
        ceiling=largest_signal(epsilon=best.epsilon, delta=plan.delta),
    )


def run_at(total: TotalNoise, noise_multiplier: float, *, steps: int | None = None) -> Event:
    """The run of the same η at another noise multiplier; full batches where more would be needed."""
    probability = min(1.0, total.sampling_probability(noise_multiplier, steps=steps))
    return Repeated(PoissonSampled(probability, Gaussian(noise_multiplier)), total.steps if steps is None else steps)


def _epsilon_by(accountant: str, event: Event, delta: float) -> float:
    return ACCOUNTANTS[accountant].epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def tight_epsilon(event: Event, *, delta: float) -> float:
    """ε by the tight accountant alone, which is quicker than by all; by the best of the others where it gives up."""
    try:
        return _epsilon_by(TIGHT, event, delta)
    except AccountantFailed:
        return bound(event, delta=delta).epsilon


def estimated_epsilon(event: Event, *, delta: float) -> float:
    """What η alone says: an estimate, not a guarantee."""
    return _epsilon_by("tan", event, delta)


def balle20_epsilon(event: Event, *, delta: float) -> float:
    """ε by the accountant that the paper reports."""
    return _epsilon_by("rdp-balle20", event, delta)


def large_noise_epsilon(signal: float, *, delta: float) -> float:
    """The tight ε of full batches with this signal: steps no longer matter, and it is one release of a Gaussian."""
    return tight_epsilon(Gaussian(1 / validate.positive(signal=signal)), delta=delta)


def privacy_wall(total: TotalNoise, *, delta: float, tolerance: float = WALL) -> float | None:
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


# Other settings at the same ε.

BATCH_FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)
STEP_FACTORS = (1 / 16, 1 / 4, 4.0)
NEARLY = 0.05  # the share of its signal that a cheaper setting may lose and still be called nearly as good


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A setting at most as dear in ε as the plan, compared with the plan."""

    expected_batch_size: float
    steps: int
    noise_multiplier: float
    epsilon: float
    signal: float
    signal_gain: float  # as a share of the plan's; below zero for a loss
    cost: float  # records looked at
    cost_factor: float
    learning_rate_factor: float
    above_limit: float  # what ε is above the large-noise limit of the same η, as a share
    is_plan: bool

    @property
    def is_behind_wall(self) -> bool:
        """Whether more than a tenth of its ε is paid for too small a noise."""
        return self.above_limit > WALL

    @property
    def gain_per_cost(self) -> float | None:
        """The share of signal won per share of cost added; none where no cost is added."""
        return self.signal_gain / (self.cost_factor - 1) if self.cost_factor > 1 else None

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {**asdict(self), "is_behind_wall": self.is_behind_wall, "gain_per_cost": self.gain_per_cost}


@dataclass(frozen=True, kw_only=True, slots=True)
class MoreData:
    """A plan on twice the records, δ halved, and what becomes of ε or of the noise."""

    keeps: str
    records: int
    delta: float
    expected_batch_size: float
    noise_multiplier: float
    epsilon: float
    epsilon_estimate: float
    cost_factor: float


def other_batches(plan: Plan, *, epsilon: float) -> Iterator[Proposal]:
    """The same steps with other batches, each with the least noise that ε allows; those out of reach are left out."""
    batches = {_whole(plan.expected_batch_size * factor) for factor in BATCH_FACTORS if factor != 1}
    for batch in sorted({plan.expected_batch_size, *batches}):
        if batch == plan.expected_batch_size:
            yield _proposal(plan, plan, epsilon)
        elif batch <= plan.records:
            yield from _proposals(plan, epsilon, batch=batch, steps=plan.steps)


def other_steps(plan: Plan, *, epsilon: float) -> Iterator[Proposal]:
    """More or fewer steps at almost the same η: the batch follows as 1/√steps, the learning rate as 1/steps."""
    for steps in sorted({max(1, round(plan.steps * factor)) for factor in STEP_FACTORS}):
        batch = _whole(plan.expected_batch_size * math.sqrt(plan.steps / steps))
        if steps != plan.steps and batch <= plan.records:
            yield from _proposals(plan, epsilon, batch=batch, steps=steps)


def twice_the_data(plan: Plan, *, epsilon: float) -> Iterator[MoreData]:
    """What twice the records would give: less ε, or twice the batch, or less noise at the same ε."""
    more = replace(plan, records=2 * plan.records, delta=plan.delta / 2)
    found = {
        "batch, noise and steps": more,
        "sampling probability, noise and steps": replace(more, expected_batch_size=2 * plan.expected_batch_size),
        "batch, steps and ε": _calibrate(more, epsilon),
    }
    for keeps, each in found.items():
        if each is not None:
            yield MoreData(
                keeps=keeps,
                records=each.records,
                delta=each.delta,
                expected_batch_size=each.expected_batch_size,
                noise_multiplier=each.noise_multiplier,
                epsilon=tight_epsilon(each.event, delta=each.delta),
                epsilon_estimate=estimated_epsilon(each.event, delta=each.delta),
                cost_factor=each.expected_batch_size / plan.expected_batch_size,
            )


def best_for_its_cost(rows: Sequence[Proposal]) -> Proposal | None:
    """The dearer setting with the most signal won for each share of cost added; none where no signal is won."""
    gaining = [row for row in rows if row.gain_per_cost is not None and row.signal_gain > 0]
    return max(gaining, key=lambda row: row.gain_per_cost or 0.0, default=None)


def cheapest_nearly_as_good(rows: Sequence[Proposal]) -> Proposal | None:
    """The cheapest setting that loses little of the plan's signal; none where every cheaper one loses more."""
    good = [row for row in rows if row.cost_factor < 1 and row.signal_gain >= -NEARLY]
    return min(good, key=lambda row: row.cost_factor, default=None)


def _whole(batch: float) -> float:
    return float(max(1, round(batch)))


def _proposals(plan: Plan, epsilon: float, *, batch: float, steps: int) -> Iterator[Proposal]:
    found = _calibrate(replace(plan, expected_batch_size=batch, steps=steps), epsilon)
    if found is not None:
        yield _proposal(plan, found, tight_epsilon(found.event, delta=found.delta))


def _calibrate(plan: Plan, epsilon: float) -> Plan | None:
    """The plan with the least noise that ε allows; None where no noise is found that does."""
    batch, steps = plan.expected_batch_size, plan.steps
    how = {"records": plan.records, "expected_batch_size": batch, "steps": steps, "accountant": TIGHT}
    try:
        return make_plan(epsilon=epsilon, delta=plan.delta, **how)  # type: ignore[arg-type]
    except (Unreachable, AccountantFailed):
        return None


def _proposal(plan: Plan, found: Plan, epsilon: float) -> Proposal:
    signal, before = total_noise(found).signal, total_noise(plan).signal
    cost = found.expected_batch_size * found.steps
    return Proposal(
        expected_batch_size=found.expected_batch_size,
        steps=found.steps,
        noise_multiplier=found.noise_multiplier,
        epsilon=epsilon,
        signal=signal,
        signal_gain=signal / before - 1,
        cost=cost,
        cost_factor=cost / (plan.expected_batch_size * plan.steps),
        learning_rate_factor=plan.steps / found.steps,
        above_limit=epsilon / large_noise_epsilon(signal, delta=plan.delta) - 1,
        is_plan=found == plan,
    )


# Figures 2 and 3 of the paper.

FIGURE_STEP_FACTORS = (1 / 16, 1.0, 16.0)
POINTS = 9
RATIO_ORDERS = tuple(float(order) for order in (*range(2, 17), 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 192, 256))
RATIO_NOISE_MULTIPLIERS = (0.5, 1.0, FAIR_FROM, 4.0)
_SMALLEST, _LARGEST = 0.5, 8.0  # where the paper's figure begins, and where nothing changes any more


@dataclass(frozen=True, kw_only=True, slots=True)
class EtaPoint:
    """One setting of the constant η."""

    noise_multiplier: float
    sampling_probability: float
    epsilon: float
    epsilon_balle20: float | None  # on the plan's own line only


@dataclass(frozen=True, kw_only=True, slots=True)
class EtaCurve:
    """ε against the noise multiplier at one number of steps."""

    steps: int
    is_of_plan: bool
    points: tuple[EtaPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioCurve:
    """The divergence of a step over order·η², at each order; infinite where the divergence is."""

    noise_multiplier: float
    sampling_probability: float
    is_of_plan: bool
    orders: tuple[float, ...]
    ratios: tuple[float, ...]


def eta_curves(plan: Plan, *, step_factors: Sequence[float] = FIGURE_STEP_FACTORS) -> Iterator[EtaCurve]:
    """Figure 2, a line at a time: fewer steps than planned, as planned, and more. A line of one point is left out."""
    total, own = total_noise(plan), plan.noise_multiplier
    first, last = min(_SMALLEST, own / 1.5), max(_LARGEST, own * 1.5)
    evenly = [first * (last / first) ** (place / (POINTS - 1)) for place in range(POINTS)]
    for steps in sorted({max(1, round(plan.steps * factor)) for factor in step_factors}):
        is_own, full = steps == plan.steps, math.sqrt(steps) / total.signal  # full: every record is in every batch
        noises = {*evenly, *([own] if is_own else []), *([full] if full < last else [])}
        points = []
        for noise in _possible(total, noises, steps):
            run = run_at(total, noise, steps=steps)
            points.append(
                EtaPoint(
                    noise_multiplier=noise,
                    sampling_probability=min(1.0, total.sampling_probability(noise, steps=steps)),
                    epsilon=tight_epsilon(run, delta=plan.delta),
                    epsilon_balle20=balle20_epsilon(run, delta=plan.delta) if is_own else None,
                )
            )
        if len(points) > 1:
            yield EtaCurve(steps=steps, is_of_plan=is_own, points=tuple(points))


def ratio_curves(plan: Plan) -> tuple[RatioCurve, ...]:
    """Figure 3: a few noise multipliers and the plan's own, smallest first."""
    total, curves = total_noise(plan), []
    for noise in _possible(total, {*RATIO_NOISE_MULTIPLIERS, plan.noise_multiplier}, total.steps):
        probability = min(1.0, total.sampling_probability(noise))
        step = PoissonSampled(probability, Gaussian(noise))
        found = renyi_divergences(step, RATIO_ORDERS, Adjacency.ADD_OR_REMOVE_ONE, only_these=True).tolist()
        curves.append(
            RatioCurve(
                noise_multiplier=noise,
                sampling_probability=probability,
                is_of_plan=noise == plan.noise_multiplier,
                orders=RATIO_ORDERS,
                ratios=tuple(
                    value / (order * total.eta_step**2) for order, value in zip(RATIO_ORDERS, found, strict=True)
                ),
            )
        )
    return tuple(curves)


def deciding_order(plan: Plan) -> float:
    """The order at which the estimate takes its minimum, 1 + √ln(1/δ)/η."""
    return 1 + math.sqrt(-math.log(plan.delta)) / total_noise(plan).eta


def _possible(total: TotalNoise, noises: set[float], steps: int) -> list[float]:
    """The noise multipliers at which no batch has more than all records, but for rounding."""
    return sorted(noise for noise in noises if total.sampling_probability(noise, steps=steps) <= 1 + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class TanOutlook:
    """The plan, where it stands, and settings to compare it with. The figures are empty where they were not asked."""

    plan: Plan
    standing: TanAnalysis
    other_batches: tuple[Proposal, ...]
    other_steps: tuple[Proposal, ...]
    twice_the_data: tuple[MoreData, ...]
    curves: tuple[EtaCurve, ...] = ()
    ratio_curves: tuple[RatioCurve, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "standing": self.standing.to_json(),
            "other_batches": [row.to_json() for row in self.other_batches],
            "other_steps": [row.to_json() for row in self.other_steps],
            "twice_the_data": [asdict(row) for row in self.twice_the_data],
            "constant_eta": [asdict(curve) for curve in self.curves],
            "divergence_ratio": [asdict(curve) for curve in self.ratio_curves],
        }


def tan_outlook(plan: Plan, *, step_factors: Sequence[float] = FIGURE_STEP_FACTORS) -> TanOutlook:
    """The whole of it, which takes seconds, since everything is counted by the tight accountant.

    ``step_factors`` are the numbers of steps of the figures, times those of the plan; without any, no figure is made.
    """
    standing = analyse(plan)
    return TanOutlook(
        plan=plan,
        standing=standing,
        other_batches=tuple(other_batches(plan, epsilon=standing.epsilon)),
        other_steps=tuple(other_steps(plan, epsilon=standing.epsilon)),
        twice_the_data=tuple(twice_the_data(plan, epsilon=standing.epsilon)),
        curves=tuple(eta_curves(plan, step_factors=step_factors)),
        ratio_curves=ratio_curves(plan) if step_factors else (),
    )
