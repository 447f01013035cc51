"""What a search over settings costs: nothing on public records; on private ones a selection, or all of its trials.

>>> from lehr.planning.plan import Plan
>>> trial = Plan(noise_multiplier=1.0, expected_batch_size=512, records=60_000, steps=1000, delta=1e-5)
>>> few = plan_for(RepeatedSelection(mean=10), trial, epsilon=3.0)
>>> all_shown = plan_for(Composition(trials=10), trial, epsilon=3.0)
>>> round(few.noise_multiplier, 2), round(all_shown.noise_multiplier, 2)
(1.1, 1.38)

A selection keeps its number of trials secret and shows nothing but the best model; that is why it is cheaper. Why both
hold: search_cost.proof.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from lehr import validate
from lehr.accounting.calibration import Target, smallest_noise_multiplier
from lehr.accounting.events import NOTHING, Event, RepeatAndSelect, Repeated, counted, together
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import Plan

LARGEST_MEAN = 10_000  # nobody trains so often, and counting up to a number drawn from a heavy tail takes its time
_BELOW = 1 - 1e-12  # so that the mean of the law is no larger than the stated one, whatever is rounded
_NEVER = 2.0**-80  # a probability that no draw of 52 bits can find


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedSelection:
    """Independent trials, a secret random number of them, of which nothing but the best is ever shown.

    The number follows the truncated negative binomial law of Papernot & Steinke (2022) with this ``mean`` and ``shape``
    (1 geometric, 0 logarithmic), or the Poisson law where ``shape`` is None, which may draw no trial at all.
    """

    mean: float
    shape: float | None = 1.0

    def __post_init__(self) -> None:
        if not validate.at_least(1, mean=self.mean) <= LARGEST_MEAN:
            raise InvalidValue("mean", allowed=f"a number of trials from 1 to {LARGEST_MEAN}", given=self.mean)
        if self.shape is not None:
            validate.non_negative(shape=self.shape)

    def event(self, trial: Event) -> Event:
        """What the search does to the records, of which each trial does this."""
        return RepeatAndSelect(together(trial), mean=self.mean, shape=self.shape)

    def certified(self, trial: Event) -> tuple[Event, Event | None]:
        """What the certificate of the winner is for, and what of it was only for choosing: here they are one."""
        return self.event(trial), None

    def trials(self, uniform: float) -> int:
        """The number of trials that a uniform number in (0, 1) stands for: the smallest with so much law up to it."""
        validate.delta(uniform=uniform)
        reached = 0.0
        for number, probability in self._law():
            reached += probability
            if uniform <= reached or (number > self.mean and probability < _NEVER):
                return number
        raise AssertionError("a law has no end")

    def _law(self) -> Iterator[tuple[int, float]]:
        """Every number of trials with its probability, from the smallest on."""
        if self.shape is None:
            number, log_probability = 0, -self.mean
            while True:
                yield number, math.exp(log_probability)
                number += 1
                log_probability += math.log(self.mean / number)
        if self.mean == 1:
            yield 1, 1.0
            return
        exponent = _exponent(self.mean, self.shape)
        number, log_probability = 1, _log_first(exponent, self.shape)
        while True:
            yield number, math.exp(log_probability)
            log_probability += math.log(-math.expm1(-exponent)) + math.log((number + self.shape) / (number + 1))
            number += 1


@dataclass(frozen=True, slots=True)
class Composition:
    """A number of trials that is fixed beforehand. All of them are charged, and all may be shown."""

    trials: int

    def __post_init__(self) -> None:
        validate.count(minimum=2, trials=self.trials)

    def event(self, trial: Event) -> Event:
        """What the search does to the records, of which each trial does this."""
        return together(Repeated(together(trial), self.trials))

    def certified(self, trial: Event) -> tuple[Event, Event | None]:
        """What the certificate of a trial is for, and what the other trials did: that is what choosing it cost."""
        return together(trial), together(Repeated(together(trial), self.trials - 1))


SearchPrice = RepeatedSelection | Composition


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchTrial:
    """That a run is one trial of a search: what the search costs, and what each of its trials may do to the records."""

    price: SearchPrice
    event: Event

    def check_same(self, event: Event) -> None:
        """Refuse a run that does anything else: all trials of a search are paid for as one and the same event."""
        if counted(event) != counted(self.event):
            allowed = f"what was fixed for every trial, {self.event}"
            raise InvalidValue("what a trial does to the records", allowed=allowed, given=str(event))


def plan_for(price: SearchPrice, plan: Plan, *, epsilon: float, beside: Event = NOTHING) -> Plan:
    """The plan of a trial: the given one, with the least noise with which the whole search stays within ε.

    ``beside`` is what else a trial does to the records, such as noised scores.
    """
    check_searchable(plan)

    def search_at(noise_multiplier: float) -> Event:
        return price.event(together(replace(plan, noise_multiplier=noise_multiplier).event, beside))

    target = Target(epsilon, plan.delta, plan.adjacency)
    return replace(plan, noise_multiplier=smallest_noise_multiplier(search_at, target))


def check_searchable(plan: Plan) -> None:
    """Trials on private records are full private runs whose events are known before a record is touched."""
    if plan.simulates is not None:
        allowed = "no simulation on private records: it has next to no noise, and would protect nobody"
        raise InvalidValue("plan", allowed=allowed, given="a simulation")
    if plan.limit is not None or plan.stops_at_accepted is not None:
        allowed = "one whose events are fixed, for a search on private records"
        raise InvalidValue("plan", allowed=allowed, given="one whose costs or end follow what is released")
    if plan.bands > 1:
        raise InvalidValue("bands", allowed="1 for a search on private records", given=plan.bands)
    if plan.noise_multiplier == 0:
        raise InvalidValue("noise_multiplier", allowed="a number > 0 on private records", given=0)


SELECTION, COMPOSITION = "selection", "composition"
WAYS: dict[str, type[SearchPrice]] = {SELECTION: RepeatedSelection, COMPOSITION: Composition}


def to_json(price: SearchPrice) -> dict[str, object]:
    """The JSON form of a price."""
    [kind] = [kind for kind, way in WAYS.items() if isinstance(price, way)]
    return {"kind": kind, **asdict(price)}


def from_json(shape: object) -> SearchPrice:
    """The price of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused."""
    kind = validate.one_of(WAYS, kind=strict_json.check_object("price", shape).get("kind"))
    names = [each.name for each in fields(WAYS[kind])]
    given: dict[str, Any] = strict_json.fields("price", shape, ("kind", *names))
    return WAYS[kind](**{name: given[name] for name in names})


def law_in_words(shape: float | None) -> str:
    """The law of the number of trials.

    >>> law_in_words(1.0), law_in_words(None), law_in_words(0.5)
    ('geometric', 'Poisson', 'truncated negative binomial, shape 0.5,')
    """
    if shape is None:
        return "Poisson"
    return {0.0: "logarithmic", 1.0: "geometric"}.get(shape, f"truncated negative binomial, shape {shape:g},")


def selection_in_words(selected: RepeatAndSelect) -> str:
    """How the settings were chosen and paid for, for a certificate."""
    return (
        "Settings were drawn at random, a model was trained on the private data with each draw, and the best was kept. "
        f"The number of trials is secret: it was drawn by the {law_in_words(selected.shape)} law with mean "
        f"{selected.mean:g}, and nothing of the other trials was shown or kept. The guarantee counts them all."
    )


def composition_in_words(trials: int) -> str:
    """The same where every trial is charged."""
    return f"It was chosen among {trials} trials on the private data. The guarantee counts them all, shown or not."


def _exponent(mean: float, shape: float) -> float:
    """log(1/γ) of the truncated negative binomial law whose mean is the given one, or less by a hair."""
    low, high = 0.0, 1.0
    while _mean(high, shape) < mean:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _mean(middle, shape) <= mean else (low, middle)
    return low * _BELOW


def _mean(exponent: float, shape: float) -> float:
    """Of the law: η·(1/γ − 1)/(1 − γ^η), and its limit (1/γ − 1)/log(1/γ) for η = 0."""
    if shape * exponent == 0:
        return math.expm1(exponent) / exponent
    return shape * math.expm1(exponent) / -math.expm1(-shape * exponent)


def _log_first(exponent: float, shape: float) -> float:
    """Of the probability of one trial: η·(1 − γ)/(γ^−η − 1), and its limit (1 − γ)/log(1/γ) for η = 0."""
    if shape * exponent == 0:
        return math.log(-math.expm1(-exponent) / exponent)
    scale = shape * exponent
    return math.log(-math.expm1(-exponent)) + math.log(shape) - scale - math.log(-math.expm1(-scale))
