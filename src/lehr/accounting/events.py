"""What was done to the private records, as data. What it costs is computed elsewhere (``lehr.accounting``).

Events are frozen and hashable, compare by value, and hold public numbers only. A training run is

>>> step = PoissonSampled(sampling_probability=512 / 60_000, event=Gaussian(noise_multiplier=1.23))
>>> run = Repeated(event=step, count=4698)

and every event has a JSON form, read back through one closed table (a name found in a file never picks code):

>>> from_json(to_json(run)) == run
True
>>> counted(Composed((run, Repeated(step, 2), Gaussian(4.0)))) == {step: 4700, Gaussian(4.0): 1}
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json


class Adjacency(Enum):
    """Which pairs of data sets a guarantee makes hard to tell apart."""

    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"  # a record keeps its place in every draw, and adds nothing to any sum


class _Checked:
    """Events check their fields by name and keep Python's own numbers: a narrower type would wrap round or round."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        for name, field in self.__dataclass_fields__.items():
            value = _CHECKS[name](**{name: getattr(self, name)})
            if field.type == "Gaussian" and not isinstance(value, Gaussian):
                raise InvalidValue(name, allowed="a Gaussian", given=value)
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        values = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        shown = (f"{name}={value:g}" if isinstance(value, float) else str(value) for name, value in values)
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True)
class Gaussian(_Checked):
    """Gaussian noise on a value of known L2 sensitivity.

    ``noise_multiplier`` is the noise's standard deviation over the L2 sensitivity *under the adjacency in use*
    (a sum of records clipped to C has sensitivity 2·C under replace-one, and C under the other two).
    Zero means that the value was released as it is: every accountant answers infinity.
    """

    noise_multiplier: float


@dataclass(frozen=True, slots=True)
class RoundedGaussian(Gaussian):
    """Gaussian noise, rounded exactly, on a vector of integers: what it releases is a Gaussian's release, rounded.

    So every accountant counts it as the Gaussian that it is. What rounding a sum to integers adds to its sensitivity is
    part of the sensitivity (``privacy/noise.proof.md``).
    """


@dataclass(frozen=True, slots=True)
class Laplace(_Checked):
    """Laplace noise on a value of known L1 sensitivity; ``noise_multiplier`` is the noise's scale over it."""

    noise_multiplier: float


@dataclass(frozen=True, slots=True)
class PureDP(_Checked):
    """Any mechanism that is ε-differentially private by itself, without a δ.

    The probability of each of its outcomes changes by a factor of at most e^``epsilon`` under the adjacency in use:
    noisy maximum, the exponential mechanism, randomised response. Zero means that it does not look at the records.
    """

    epsilon: float


@dataclass(frozen=True, slots=True)
class PoissonSampled(_Checked):
    """Each record entered with ``sampling_probability``, independently; then ``event`` was applied."""

    sampling_probability: float
    event: Gaussian


@dataclass(frozen=True, slots=True)
class GroupPoissonSampled(_Checked):
    """Each record entered with ``sampling_probability``, independently; then ``event`` was applied.

    Neighbours differ in a whole group of at most ``group_size`` records, such as those of a user. The noise multiplier
    of ``event`` is relative to one record.
    """

    sampling_probability: float
    group_size: int
    event: Gaussian

    def __str__(self) -> str:
        rate = f"sampling_probability={self.sampling_probability:g}"
        return f"GroupPoissonSampled({rate}, groups of {self.group_size}, {self.event})"


@dataclass(frozen=True, slots=True)
class TruncatedPoissonSampled(_Checked):
    """A Poisson sample of at most ``records`` records, cut at random to ``largest_batch`` where it is larger.

    Then ``event`` was applied. Its noise multiplier is relative to one record added to a batch that is not cut.
    """

    sampling_probability: float
    records: int
    largest_batch: int
    event: Gaussian

    def __str__(self) -> str:
        rate = f"sampling_probability={self.sampling_probability:g}"
        return f"TruncatedPoissonSampled({rate}, at most {self.largest_batch} of {self.records}, {self.event})"


@dataclass(frozen=True, slots=True)
class SampledWithoutReplacement(_Checked):
    """A uniformly random ``sample_size`` of ``records`` distinct records; then ``event`` was applied."""

    records: int
    sample_size: int
    event: Gaussian

    def __post_init__(self) -> None:
        _Checked.__post_init__(self)
        if not self.sample_size <= self.records:
            raise InvalidValue("sample_size", allowed=f"at most the {self.records} records", given=self.sample_size)

    def __str__(self) -> str:
        return f"SampledWithoutReplacement({self.sample_size} of {self.records}, {self.event})"


@dataclass(frozen=True, slots=True)
class BallsInBins(_Checked):
    """One epoch: each record went to one of ``bins`` steps, uniformly and independently, and to no other.

    ``event`` was applied to the records of every step. The steps of an epoch have no cost of their own.
    """

    bins: int
    event: Gaussian

    def __str__(self) -> str:
        return f"BallsInBins({self.bins} bins, {self.event})"


@dataclass(frozen=True, slots=True)
class CorrelatedSteps(_Checked):
    """All ``steps`` of a run whose noise is correlated from step to step by a matrix of so many ``bands``.

    Each record belongs to one of ``bands`` groups. At step t, each record of group t mod ``bands`` entered with
    ``sampling_probability``. ``event`` is the noise of a whole column of the matrix. The steps of a run have no costs
    of their own: only all of them are one event.
    """

    steps: int
    bands: int
    sampling_probability: float
    event: Gaussian

    @property
    def cycle(self) -> PoissonSampled:
        """What ``bands`` steps, in which a record can enter once, do to the records: ``correlated.proof.md``."""
        return PoissonSampled(sampling_probability=self.sampling_probability, event=self.event)

    @property
    def cycles(self) -> int:
        """How often a record can enter at most."""
        return -(-self.steps // self.bands)

    def __str__(self) -> str:
        rate = f"sampling_probability={self.sampling_probability:g}"
        return f"CorrelatedSteps({self.steps} steps, {self.bands} bands, {rate}, {self.event})"


@dataclass(frozen=True, slots=True)
class InverseCorrelatedSteps(_Checked):
    """All ``steps`` of a run whose noise is correlated by a matrix with an inverse of so many ``bands``.

    Each record belongs to one of ``groups`` groups, and can enter at the steps t of group t mod ``groups`` only.
    ``event`` is the noise relative to all that a record moves that enters at each of these steps. The steps of a run
    have no costs of their own: only all of them are one event, which is counted as that Gaussian mechanism, and not at
    all where records are replaced, because one that replaces another moves the steps of both.
    """

    steps: int
    bands: int
    groups: int
    event: Gaussian

    def __str__(self) -> str:
        return f"InverseCorrelatedSteps({self.steps} steps, {self.bands} bands, {self.groups} groups, {self.event})"


@dataclass(frozen=True, slots=True)
class RepeatAndSelect(_Checked):
    """``event`` was repeated a secret random number of times and only the best outcome was kept.

    The number of repetitions follows the truncated negative binomial law of Papernot & Steinke (2022) with the
    given ``mean`` and ``shape`` (0 logarithmic, 1 geometric), or the Poisson law where ``shape`` is None.
    """

    event: Event
    mean: float
    shape: float | None = 1.0

    def __str__(self) -> str:
        return f"RepeatAndSelect({self.event}, mean={self.mean:g}, shape={self.shape})"


@dataclass(frozen=True, slots=True)
class RenyiLimit(_Checked):
    """Events that were chosen as a run went, while their Rényi divergences of one ``order`` stayed within a limit.

    It was checked before each of them that the sum, that one included, is at most ``divergence``: a privacy filter.
    """

    order: float
    divergence: float


@dataclass(frozen=True, slots=True)
class NonPrivate(_Checked):
    """Something was released without noise. Every accountant answers infinity."""

    reason: str


@dataclass(frozen=True, slots=True)
class Repeated(_Checked):
    """``event``, ``count`` times, each with fresh randomness."""

    event: Event
    count: int

    def __str__(self) -> str:
        return f"{self.count} × {self.event}"


@dataclass(frozen=True, slots=True)
class Composed(_Checked):
    """Several events on the same records. An empty composition did nothing and costs nothing."""

    events: tuple[Event, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.events)) or "nothing"


Atom = (
    Gaussian
    | RoundedGaussian
    | Laplace
    | PureDP
    | PoissonSampled
    | GroupPoissonSampled
    | TruncatedPoissonSampled
    | SampledWithoutReplacement
    | BallsInBins
    | CorrelatedSteps
    | InverseCorrelatedSteps
    | RepeatAndSelect
    | RenyiLimit
    | NonPrivate
)
Event = Atom | Repeated | Composed


def check_event(**named: object) -> Event:
    """A checked event."""
    [(name, value)] = named.items()
    if not isinstance(value, Event):
        raise InvalidValue(name, allowed="an event", given=value)
    return value


def check_adjacency(**named: object) -> Adjacency:
    """A checked adjacency."""
    [(name, value)] = named.items()
    if not isinstance(value, Adjacency):
        raise InvalidValue(name, allowed="an Adjacency", given=value)
    return value


def _check_events(*, events: object) -> tuple[Event, ...]:
    if not isinstance(events, tuple):
        raise InvalidValue("events", allowed="a tuple of events", given=events)
    return tuple(check_event(events=event) for event in events)


def _check_order(*, order: float) -> float:
    if not validate.positive(order=order) > 1:
        raise InvalidValue("order", allowed="a number > 1", given=order)
    return float(order)


_CHECKS: dict[str, Callable[..., object]] = {
    "bins": validate.count,
    "bands": validate.count,
    "count": validate.count,
    "divergence": validate.positive,
    "epsilon": validate.non_negative,
    "event": check_event,
    "events": _check_events,
    "group_size": validate.count,
    "groups": validate.count,
    "largest_batch": validate.count,
    "mean": partial(validate.at_least, 1),
    "noise_multiplier": validate.non_negative,
    "order": _check_order,
    "reason": validate.text,
    "records": validate.count,
    "sample_size": validate.count,
    "sampling_probability": validate.probability,
    "shape": lambda shape: None if shape is None else validate.non_negative(shape=shape),
    "steps": validate.count,
}
NOTHING = Composed(())


def counted(event: Event) -> dict[Atom, int]:
    """The same event with nesting undone: each distinct atom and how often it happened."""
    totals: dict[Atom, int] = {}
    try:
        _add(check_event(event=event), 1, totals)
    except RecursionError as error:
        raise InvalidValue("event", allowed="nested a few levels deep", given="hundreds of levels") from error
    return totals


def counted_by_cycles(event: Event) -> dict[Atom, int]:
    """``counted``, with correlated steps as the Gaussian of each of their cycles, or of all: what accountants count."""
    totals: dict[Atom, int] = {}
    for atom, count in counted(event).items():
        if isinstance(atom, CorrelatedSteps):
            _add(atom.cycle, count * atom.cycles, totals)
        elif isinstance(atom, InverseCorrelatedSteps):
            _add(PoissonSampled(1.0, atom.event), count, totals)  # which is refused where records are replaced
        else:
            _add(atom, count, totals)
    return totals


def composed(counts: Mapping[Atom, int]) -> Event:
    """The inverse of ``counted``: the shortest event that says the same."""
    parts = tuple(atom if count == 1 else Repeated(atom, count) for atom, count in counts.items() if count)
    return parts[0] if len(parts) == 1 else Composed(parts)


def together(*events: Event) -> Event:
    """All of the events, each distinct one with its count."""
    return composed(counted(Composed(events)))


def steps_per_event(atom: Atom) -> int:
    """How many steps of a run have this event together: those of an epoch, all of a run with bands, or one."""
    match atom:
        case BallsInBins(bins=steps) | CorrelatedSteps(steps=steps) | InverseCorrelatedSteps(steps=steps):
            return steps
    return 1


def is_part(part: Event, *, of: Event) -> bool:
    """Whether every event of ``part`` is in the whole at least as often."""
    whole = counted(of)
    return all(count <= whole.get(atom, 0) for atom, count in counted(part).items())


def rest(whole: Event, part: Event) -> Event:
    """What is left of the whole when the part is taken out of it."""
    taken = counted(part)
    return composed({atom: max(0, count - taken.get(atom, 0)) for atom, count in counted(whole).items()})


_TYPE_OF: Mapping[str, Any] = {
    "gaussian": Gaussian,
    "rounded-gaussian": RoundedGaussian,
    "laplace": Laplace,
    "pure-dp": PureDP,
    "renyi-limit": RenyiLimit,
    "poisson-sampled": PoissonSampled,
    "group-poisson-sampled": GroupPoissonSampled,
    "truncated-poisson-sampled": TruncatedPoissonSampled,
    "sampled-without-replacement": SampledWithoutReplacement,
    "balls-in-bins": BallsInBins,
    "correlated-steps": CorrelatedSteps,
    "inverse-correlated-steps": InverseCorrelatedSteps,
    "repeat-and-select": RepeatAndSelect,
    "non-private": NonPrivate,
    "repeated": Repeated,
    "composed": Composed,
}
FLOAT, DISCRETE = "float", "discrete"  # how Gaussian noise is made
NOISES: Mapping[str, type[Gaussian]] = MappingProxyType({FLOAT: Gaussian, DISCRETE: RoundedGaussian})
_KIND_OF = {event_type: kind for kind, event_type in _TYPE_OF.items()}
EVENT_TYPES: tuple[type, ...] = tuple(_KIND_OF)


def to_json(event: Event) -> dict[str, object]:
    """The JSON form of an event."""
    fields: dict[str, object] = {"kind": _KIND_OF[type(event)]}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if isinstance(value, tuple):
            value = [to_json(part) for part in value]
        fields[name] = to_json(value) if isinstance(value, Event) else value
    return fields


def from_json(shape: object) -> Event:
    """The event of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused."""
    strict_json.refuse_depth(shape)
    return _from_json(shape)


def _from_json(shape: object) -> Event:
    kind = shape.get("kind") if isinstance(shape, dict) else None
    if not isinstance(kind, str) or kind not in _TYPE_OF:
        raise InvalidValue("event", allowed="an object whose kind is one of " + ", ".join(_TYPE_OF), given=shape)
    names = _TYPE_OF[kind].__dataclass_fields__
    given: dict[str, Any] = dict(strict_json.fields(f"event {kind}", shape, ["kind", *names]))
    del given["kind"]
    if "event" in given:
        given["event"] = _from_json(given["event"])
    if "events" in given:
        given["events"] = strict_json.list_of("events", given["events"], _from_json)
    event: Event = _TYPE_OF[kind](**given)
    return event


def _add(event: Event, times: int, totals: dict[Atom, int]) -> None:
    match event:
        case Repeated():
            _add(event.event, times * event.count, totals)
        case Composed():
            for part in event.events:
                _add(part, times, totals)
        case _:
            totals[event] = totals.get(event, 0) + times
            validate.count(repetitions=totals[event])
