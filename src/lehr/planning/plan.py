"""The public plan of a run: everything that decides its ε, fixed before a record is touched.

>>> plan = make_plan(epsilon=3.0, delta=1e-5, records=60_000, expected_batch_size=512, noise_multiplier=1.23)
>>> plan.steps, plan.sampling_probability == 512 / 60_000
(7245, True)
>>> plan.bound().accountant
'pld'
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from lehr import schedules, validate
from lehr.accounting.accountant import ACCOUNTANTS, Bound, EpsilonCurve, bound, claim
from lehr.accounting.calibration import (
    SMALLEST_SAMPLING_PROBABILITY,
    Target,
    largest_sample,
    largest_steps,
    refuse_other_than_three,
    smallest_noise_multiplier,
)
from lehr.accounting.claims import Claim, Premise, PublishedRule, Standing
from lehr.accounting.events import (
    FLOAT,
    NOISES,
    NOTHING,
    Adjacency,
    BallsInBins,
    CorrelatedSteps,
    Event,
    Gaussian,
    GroupPoissonSampled,
    InverseCorrelatedSteps,
    NonPrivate,
    PoissonSampled,
    RenyiLimit,
    Repeated,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    check_adjacency,
    check_event,
    composed,
    counted,
    from_json,
    to_json,
    together,
)
from lehr.config import BANDED, BANDED_INVERSE, CORRELATIONS
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.schedules import CONSTANT, Schedule

SECTIONS = ("method", "data", "model", "training")  # of a configuration
RECORD, USER = UNITS = ("record", "user")  # of privacy: what is added to or removed from the data
PRIVATE, PUBLIC, SYNTHETIC = DECLARED = ("private", "public", "synthetic")  # what the records of a run are said to be


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run of steps. Every field is public; ``records`` is what the user states, never a length that was read.

    The adjacency decides the sampling: Poisson under add-or-remove-one, a fixed number without replacement under
    replace-one and zero-out. ``noise_multiplier`` is the noise over the sensitivity under that adjacency; a
    ``noise_schedule`` multiplies it step by step. ``asked`` is what else is done to the records at every step, such as
    a noisy test.

    A step is a candidate. ``stops_at_accepted`` ends the run once so many candidates were accepted; since that depends
    on what was released, ``steps`` is then the most that can be needed, and all of them are counted. With a ``limit``
    the noise of a step may follow what was released before it: it is charged step by step, within that limit.

    With ``records_per_user`` the unit of privacy is a user: ``records`` and batches count users, and each drawn user
    enters a step with at most so many records, averaged before the clip.

    With ``max_records_per_user`` the unit of privacy is a user, too, but ``records`` and batches count records, which
    are drawn and clipped one by one. Of each user at most so many records are in the whole run.

    ``noise`` is "float", Gaussian noise in floating point, or "discrete", exactly rounded Gaussian noise on
    integers.

    With ``largest_batch``, Poisson samples that are larger are cut at random (truncated Poisson sampling); there are
    then at most ``records`` records.

    With ``bins``, every record is in exactly one of the ``bins`` steps of each epoch (balls-in-bins sampling). An epoch
    has one event, which its first step costs; an epoch that is not completed costs as much.
    With more than one band the noise is correlated from step to step (``lehr.privacy.correlated``), records are drawn
    from one of several groups in turn, and the whole run is one event, which is charged at its first step. By
    ``correlation`` the bands are those of the matrix, with as many groups, or those of its inverse, with as many groups
    as the batch size allows.

    ``simulates`` is the larger plan that this one stands for (``lehr.planning.simulation``): it says how that one would
    train, and protects nobody.
    """

    noise_multiplier: float
    expected_batch_size: float
    records: int
    steps: int
    delta: float
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE
    noise_schedule: Schedule = CONSTANT
    asked: Event = NOTHING
    stops_at_accepted: int | None = None
    limit: RenyiLimit | None = None
    simulates: Plan | None = None
    records_per_user: int | None = None
    max_records_per_user: int | None = None
    largest_batch: int | None = None
    bins: int | None = None
    noise: str = FLOAT
    bands: int = 1
    correlation: str = BANDED

    def __post_init__(self) -> None:
        check_event(asked=self.asked)
        validate.one_of(NOISES, noise=self.noise)
        if self.limit is not None and not isinstance(self.limit, RenyiLimit):
            raise InvalidValue("limit", allowed="a RenyiLimit or none", given=self.limit)
        if self.records_per_user is not None:
            validate.count(records_per_user=self.records_per_user)
        if self.stops_at_accepted is not None:
            validate.count(stops_at_accepted=self.stops_at_accepted)
        for name, checked in (
            ("records", validate.count(records=self.records)),
            ("steps", validate.count(steps=self.steps)),
            ("delta", validate.delta(delta=self.delta)),
            ("noise_multiplier", validate.non_negative(noise_multiplier=self.noise_multiplier)),
            ("expected_batch_size", validate.positive(expected_batch_size=self.expected_batch_size)),
        ):
            object.__setattr__(self, name, checked)  # Python's own numbers: a narrower type would round in q = B/N
        self._check_bands()
        self._check_groups()
        self.gradient_event(0, at=self.noise_multiplier)
        self._check_plain_steps()
        if self.noise_schedule != CONSTANT and self.noise_multiplier:
            for step in range(self.steps):
                if not 0 < (factor := self.noise_schedule.factor(step)) < math.inf:
                    given = f"{factor} at step {step}"
                    raise InvalidValue("noise_schedule", allowed="a number > 0 at every step of the plan", given=given)
        if self.simulates is not None:
            self._refuse_to_simulate_another(self.simulates)

    def _check_plain_steps(self) -> None:
        """An epoch of balls-in-bins sampling consists of equal steps that do nothing else to the records.

        What a query costs where a record is zeroed out is not proven.
        """
        if self.adjacency is Adjacency.ZERO_OUT and not (self.asked == NOTHING and self.limit is None):
            allowed = "another one for steps that ask the records for more or follow a limit"
            raise InvalidValue("adjacency", allowed=allowed, given=self.adjacency.value)
        if self.bins is not None and not (self.noise_schedule == CONSTANT and self.asked == NOTHING and not self.limit):
            allowed = "omitted for steps that differ in noise, ask the records for more or follow a limit"
            raise InvalidValue("bins", allowed=allowed, given=self.bins)

    def _check_groups(self) -> None:
        """Steps that draw the records of users one by one are proven for Poisson samples alone (users.proof.md)."""
        if self.max_records_per_user is None:
            return
        validate.count(max_records_per_user=self.max_records_per_user)
        users = {"with records_per_user, which draws users": self.records_per_user is not None}
        self._refuse_other_steps("max_records_per_user", "omitted", users)

    def _refuse_other_steps(self, name: str, unless: str, more: Mapping[str, bool]) -> None:
        """Refuse a setting that is proven for equal steps that do nothing else to the records, and ``more``."""
        others = {
            f"under {self.adjacency.value}": self.adjacency is not Adjacency.ADD_OR_REMOVE_ONE,
            "with truncated batches": self.largest_batch is not None,
            "with balls-in-bins sampling": self.bins is not None,
            "with discrete noise": self.noise != FLOAT,
            "with a noise schedule": self.noise_schedule != CONSTANT,
            "for a method with queries on private records": self.asked != NOTHING,
            "for a method whose costs depend on its releases": self.limit is not None,
            "for a simulation": self.simulates is not None,
            **more,
        }
        for when, is_so in others.items():
            if is_so:
                raise InvalidValue(name, allowed=f"{unless} {when}", given=getattr(self, name))

    def _check_bands(self) -> None:
        """Correlated noise is proven for equal steps that do nothing else to the records (correlated.proof.md)."""
        is_inverse = validate.one_of(CORRELATIONS, correlation=self.correlation) == BANDED_INVERSE
        if validate.count(bands=self.bands) == 1:
            if is_inverse:
                raise InvalidValue("bands", allowed=f"at least 2 with correlation {BANDED_INVERSE}", given=1)
            return
        others = {
            "for a method that stops at accepted steps": self.stops_at_accepted is not None,
            "with users": self.unit == USER,
        }
        self._refuse_other_steps("bands", "1", others)
        if not (1 if is_inverse else self.bands) * self.expected_batch_size <= self.records:
            allowed = f"at most {self.records / self.expected_batch_size:g}, the records over the batch size"
            raise InvalidValue("bands", allowed=allowed, given=self.bands)

    def _refuse_to_simulate_another(self, larger: Plan) -> None:
        """A simulation has a smaller batch with as much noise for each record in it; all else is the plan's own."""
        given: object = larger
        if not isinstance(given, Plan) or larger.simulates is not None:
            raise InvalidValue("simulates", allowed="a plan that is no simulation itself", given=given)
        shrunk = replace(larger, noise_multiplier=self.noise_multiplier, expected_batch_size=self.expected_batch_size)
        ratio = self.noise_multiplier * larger.expected_batch_size, larger.noise_multiplier * self.expected_batch_size
        if shrunk != replace(self, simulates=None) or not math.isclose(*ratio, rel_tol=1e-9):
            allowed = "a plan with the same noise for each record of a batch, and all else but the batch the same"
            raise InvalidValue("simulates", allowed=allowed, given=larger)

    @property
    def sampling_probability(self) -> float:
        """The expected batch over the number of records, exactly."""
        return self.expected_batch_size / self.records

    @property
    def unit(self) -> str:
        """The unit of privacy: "record" or "user"."""
        return USER if self.max_records_per_user is not None else self.drawn

    @property
    def drawn(self) -> str:
        """What steps draw, and ``records`` and batches count: "record" or "user"."""
        return RECORD if self.records_per_user is None else USER

    @property
    def unit_text(self) -> str:
        """The unit of privacy with its bound, in words."""
        return unit_text(self.records_per_user, self.max_records_per_user)

    @property
    def step_event(self) -> Event:
        """What a step at the full noise does to the records; with ``bins``, what an epoch does."""
        return together(self.gradient_event(0, at=self.noise_multiplier), self.asked)

    @property
    def has_equal_steps(self) -> bool:
        """Whether every step costs the same, and does one thing to the records."""
        is_plain = self.noise_schedule == CONSTANT and self.asked == NOTHING and self.limit is None
        return is_plain and self.steps_per_event == 1

    @property
    def steps_per_event(self) -> int:
        """The steps that one event pays for: those of an epoch with ``bins``, all with bands, or one."""
        return self.steps if self.bands > 1 else self.bins or 1

    @property
    def num_groups(self) -> int:
        """How many groups the records are in: one, the number of bands, or as many as the batch size allows."""
        if self.correlation == BANDED:
            return self.bands
        most = math.floor(self.records / self.expected_batch_size)
        return min(self.steps, most if most * self.expected_batch_size <= self.records else most - 1)

    @property
    def event(self) -> Event:
        """What the whole run does to the records, at its largest number of steps."""
        return self.events(0, self.steps) if self.limit is None else self.limit

    def noise_multiplier_at(self, step: int) -> float:
        """The noise multiplier of a step, counted from zero."""
        return self.noise_multiplier * self.noise_schedule.factor(step)

    def gradient_event(self, step: int, *, at: float | None = None) -> Event:
        """What the release of a step's sum does to the records; at another noise multiplier where one is given.

        With ``bins`` it is what the whole epoch of the step does; with bands, what all steps do.
        """
        sigma = self.noise_multiplier_at(step) if at is None else at
        noise = NOISES[self.noise](sigma)
        if self.bands > 1:
            return self._correlated(self.steps, sigma)
        event = _step(self.adjacency, self.records, self.expected_batch_size, noise, self.largest_batch, self.bins)
        if self.max_records_per_user is not None and isinstance(event, PoissonSampled):
            return GroupPoissonSampled(event.sampling_probability, self.max_records_per_user, noise)
        return event

    def events(self, first: int, last: int) -> Event:
        """What the steps from the first to before the last do to the records: of epochs, those that begin there."""
        if self.bands > 1 and last > first:
            if first:
                raise InvalidValue("first", allowed="0 with correlated noise, whose steps are one event", given=first)
            return self._correlated(last, self.noise_multiplier)
        if self.noise_schedule == CONSTANT:
            begun = math.ceil(last / self.steps_per_event) - math.ceil(first / self.steps_per_event)
            gradients = {self.gradient_event(0): begun}
        else:
            gradients = Counter(self.gradient_event(step) for step in range(first, last))
        steps = [Repeated(event, count) for event, count in gradients.items() if count]
        if self.asked != NOTHING and last > first:
            steps.append(Repeated(self.asked, last - first))
        return steps[0] if len(steps) == 1 else together(*steps)

    def bound(self) -> Bound:
        """The smallest valid ε of the whole run."""
        return bound(self.event, delta=self.delta, adjacency=self.adjacency)

    def claim(self) -> Claim:
        """The proven claim behind ``bound``."""
        return claim(self.event, delta=self.delta, adjacency=self.adjacency)

    def curve(self) -> EpsilonCurve:
        """ε after each step of a plan of equal steps; with bands, of the cycle of steps or of the run that it is in."""
        event, steps_per_event = self.step_event, self.steps_per_event
        if isinstance(event, CorrelatedSteps):
            steps_per_event = event.bands
            event = event.cycle
        elif isinstance(event, InverseCorrelatedSteps):
            event = event.event
        return EpsilonCurve(
            event,
            delta=self.delta,
            adjacency=self.adjacency,
            largest_steps=self.steps,
            steps_per_event=steps_per_event,
        )

    def _correlated(self, steps: int, sigma: float) -> CorrelatedSteps | InverseCorrelatedSteps:
        if self.correlation == BANDED_INVERSE:
            return InverseCorrelatedSteps(steps, self.bands, self.num_groups, Gaussian(sigma))
        probability = self.bands * self.expected_batch_size / self.records
        return CorrelatedSteps(steps, self.bands, probability, Gaussian(sigma))

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | {
            "adjacency": self.adjacency.value,
            "noise_schedule": schedules.to_json(self.noise_schedule),
            "asked": to_json(self.asked),
            "limit": None if self.limit is None else to_json(self.limit),
            "simulates": None if self.simulates is None else self.simulates.to_json(),
        }

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The plan of a JSON form. Missing or surplus fields and bad values are refused."""
        if isinstance(shape, dict):
            # Plans of earlier versions have none of these.
            later = dict.fromkeys(("records_per_user", "max_records_per_user", "largest_batch", "bins"))
            shape = {**later, "noise": FLOAT, "bands": 1, "correlation": BANDED, **shape}
        given: dict[str, Any] = strict_json.fields("plan", shape, [field.name for field in fields(cls)])
        words = {member.value: member for member in Adjacency}
        read = {
            "adjacency": words[validate.one_of(words, adjacency=given["adjacency"])],
            "noise_schedule": schedules.from_json(given["noise_schedule"]),
            "asked": from_json(given["asked"]),
            "limit": None if given["limit"] is None else from_json(given["limit"]),
            "simulates": None if given["simulates"] is None else cls.from_json(given["simulates"]),
        }
        return cls(**{**given, **read})


def make_plan(
    *,
    records: int,
    delta: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
    beside: Event = NOTHING,
    noise_schedule: Schedule = CONSTANT,
    asked: Event = NOTHING,
    accountant: str | None = None,
    largest_batch: int | None = None,
    bins: int | None = None,
    noise: str = FLOAT,
    bands: int = 1,
    correlation: str = BANDED,
    max_records_per_user: int | None = None,
) -> Plan:
    """The plan of which exactly three of ε, noise, steps and batch are given.

    ``beside`` is what else the run does to the records: with it, too, the run stays within ``epsilon``; ``asked`` is
    what it does at every step. With an ``accountant`` by name, ε is counted by that one alone, as a paper did. Without
    ``delta``, the rule of ``delta_for`` decides. With fewer numbers, ``recommend_plan`` chooses the rest.

    With ``bins``, the batch is ``records / bins`` and counts as given.

    It never passes ``epsilon``, by the very bound that will be charged. Noise and batch come within 0.1 % of it (a
    batch drawn without replacement is a whole number); steps are the largest count that does not pass it.
    """
    if bins is not None:
        if expected_batch_size is not None:
            raise InvalidValue("expected_batch_size", allowed="omitted with bins", given=expected_batch_size)
        expected_batch_size = validate.count(records=records) / validate.count(bins=bins)
    refuse_other_than_three(
        epsilon=epsilon, noise_multiplier=noise_multiplier, steps=steps, expected_batch_size=expected_batch_size
    )
    delta = delta_for(delta, records=records)
    if steps is None and noise_schedule != CONSTANT:
        raise InvalidValue("steps", allowed="given where the noise follows a schedule", given=None)
    if correlation == BANDED_INVERSE and None in (steps, expected_batch_size):  # they do not change ε, but the noise
        allowed = f"given with correlation {BANDED_INVERSE}"
        raise InvalidValue("steps and expected_batch_size", allowed=allowed, given=(steps, expected_batch_size))
    plan = Plan(
        noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier,
        expected_batch_size=1 if expected_batch_size is None else expected_batch_size,
        records=records,
        steps=1 if steps is None else steps,
        delta=delta,
        adjacency=adjacency,
        noise_schedule=noise_schedule,
        asked=asked,
        largest_batch=largest_batch,
        bins=bins,
        noise=noise,
        bands=bands,
        correlation=correlation,
        max_records_per_user=max_records_per_user,
    )
    if epsilon is None:
        return plan
    target = Target(epsilon, delta, adjacency, accountant)

    def run_with(**number: Any) -> Event:
        return together(replace(plan, **number).event, beside)

    if noise_multiplier is None:
        sigma = smallest_noise_multiplier(lambda value: run_with(noise_multiplier=value), target)
        return replace(plan, noise_multiplier=sigma)
    if steps is None:
        return replace(plan, steps=largest_steps(lambda count: run_with(steps=count), target))
    is_whole = adjacency is not Adjacency.ADD_OR_REMOVE_ONE and largest_batch is None
    batch = largest_sample(
        lambda value: run_with(expected_batch_size=value),
        target,
        smallest=1 if is_whole else plan.records * SMALLEST_SAMPLING_PROBABILITY,
        largest=math.nextafter(records / bands, 0) if bands > 1 else records,
        whole=is_whole,
    )
    return replace(plan, expected_batch_size=batch)


def unit_text(records_per_user: int | None, max_records_per_user: int | None = None) -> str:
    """The unit of privacy with its bound, in words; of a run of records there is no bound."""
    if max_records_per_user is not None:
        return f"one user with all their records, at most {max_records_per_user:,} of them in the whole run"
    if records_per_user is None:
        return "one record"
    return f"one user with all their records, at most {records_per_user:,} of them in a step"


def delta_for(delta: float | None, *, records: int) -> float:
    """The given δ, or the largest power of ten below one over the number of records.

    This is the rule wherever both are known: in ``fit``, on the command line, in plans and in the integrations.

    >>> delta_for(None, records=60_000), delta_for(1e-6, records=60_000)
    (1e-05, 1e-06)
    """
    validate.count(records=records)
    if delta is not None:
        return validate.delta(delta=delta)
    return float(f"1e-{math.floor(math.log10(records)) + 1}")


def _step(
    adjacency: Adjacency, records: int, batch: float, noise: Gaussian, largest_batch: int | None, bins: int | None
) -> Event:
    check_adjacency(adjacency=adjacency)
    if not validate.positive(expected_batch_size=batch) <= records:
        raise InvalidValue("expected_batch_size", allowed=f"at most the {records} records", given=batch)
    if bins is not None:
        if adjacency is not Adjacency.ADD_OR_REMOVE_ONE or largest_batch is not None:
            raise InvalidValue("bins", allowed="given under add-or-remove-one, without largest_batch", given=bins)
        if batch != records / validate.count(bins=bins):
            allowed = f"{records / bins:g}, the {records} records over {bins} bins"
            raise InvalidValue("expected_batch_size", allowed=allowed, given=batch)
        return BallsInBins(bins, noise)
    if largest_batch is not None:
        most = validate.count(largest_batch=largest_batch)
        if adjacency is Adjacency.REPLACE_ONE or not batch <= most <= records:
            allowed = f"from the expected {batch:g} to the {records} records, not under {Adjacency.REPLACE_ONE.value}"
            raise InvalidValue("largest_batch", allowed=allowed, given=largest_batch)
        return TruncatedPoissonSampled(batch / records, records, most, noise)
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return PoissonSampled(batch / records, noise)
    if batch != math.floor(batch):
        allowed = "a whole number where sampling is without replacement"
        raise InvalidValue("expected_batch_size", allowed=allowed, given=batch)
    return SampledWithoutReplacement(records, int(batch), noise)


def published_event(rule: PublishedRule, plan: Plan, *, beside: Event = NOTHING) -> Event:
    """What the paper counts: what it does not see is left out, and so is, in some, what was not accepted.

    ``beside`` is what else the run does to the records, such as a PCA or charged scores.
    """
    steps = plan.stops_at_accepted if rule.counts_accepted_only and plan.stops_at_accepted else plan.steps
    seen = counted(together(plan.events(0, steps), beside))
    return composed({atom: count for atom, count in seen.items() if not isinstance(atom, NonPrivate)})


def published_claim(rule: PublishedRule, plan: Plan, *, beside: Event = NOTHING) -> Claim:
    """The claim that the paper would make. Where the rule holds, it is a proven one by the paper's accountant."""
    event, accountant = published_event(rule, plan, beside=beside), ACCOUNTANTS[rule.accountant]
    premises = claim(event, delta=plan.delta, adjacency=plan.adjacency).premises
    broken = [Premise(rule.theorem, Standing.BROKEN, because=f"{rule.because}; shown in {rule.shown_in}")]
    if not rule.is_broken:
        is_whole = counted(event) == counted(together(plan.event, beside))
        broken = [] if is_whole else [Premise(rule.theorem, Standing.BROKEN, because=_NOT_ALL)]
    return Claim(
        epsilon=accountant.epsilon(event, delta=plan.delta, adjacency=plan.adjacency),
        delta=plan.delta,
        adjacency=plan.adjacency,
        accountant=accountant.name,
        theorem=f"{rule.paper}: {rule.theorem}",
        premises=(*broken, *premises),
        proof=None if broken else accountant.proof,
    )


_NOT_ALL = "the rule leaves out a part of what the run does to the records"
