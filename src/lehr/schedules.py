"""Schedules: public functions of the step, by which a learning rate, a clip norm or a noise is multiplied.

>>> warm = LinearWarmup(steps=4, after=Cosine(total_steps=100))
>>> [round(warm.factor(step), 3) for step in (0, 3, 50)]
[0.25, 0.998, 0.5]
>>> from_json(to_json(warm)) == warm
True

Steps are counted from zero. A schedule that looked at a training loss would be a function of private records; these
know nothing but the step.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lehr import validate
from lehr.errors import InvalidValue


class Schedule(Protocol):
    """A public function of the step. The ones of this module have a JSON form."""

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by at this step, counted from zero."""


@dataclass(frozen=True)
class Constant:
    """The learning rate as it is."""

    def factor(self, step: int) -> float:
        return 1.0


CONSTANT = Constant()


@dataclass(frozen=True, kw_only=True)
class LinearWarmup:
    """Rises in equal parts to the full rate, reached at the last of ``steps``, on top of another schedule.

    The two factors are multiplied: the other schedule counts the steps of the warm-up too, so that the
    ``total_steps`` of a cosine are those of the run.
    """

    steps: int
    after: Schedule = CONSTANT

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)

    def factor(self, step: int) -> float:
        return min(1.0, (step + 1) / self.steps) * self.after.factor(step)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Half a cosine from the full rate down to ``final_fraction`` of it, where it stays (Loshchilov & Hutter 2017)."""

    total_steps: int
    final_fraction: float = 0.0

    def __post_init__(self) -> None:
        validate.count(total_steps=self.total_steps)
        _fraction(final_fraction=self.final_fraction)

    def factor(self, step: int) -> float:
        passed = min(1.0, step / self.total_steps)
        return self.final_fraction + (1 - self.final_fraction) * (1 + math.cos(math.pi * passed)) / 2


@dataclass(frozen=True, kw_only=True)
class LinearDecay:
    """A straight line from the factor ``first`` to the factor ``last``, reached after ``steps``, where it stays."""

    steps: int
    first: float = 1.0
    last: float = 0.0

    def __post_init__(self) -> None:
        validate.count(steps=self.steps)
        validate.non_negative(first=self.first)
        validate.non_negative(last=self.last)

    def factor(self, step: int) -> float:
        passed = min(1.0, step / self.steps)
        return (1 - passed) * self.first + passed * self.last


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Multiplied by ``decay`` after every so many steps."""

    every: int
    decay: float

    def __post_init__(self) -> None:
        validate.count(every=self.every)
        validate.probability(decay=self.decay)

    def factor(self, step: int) -> float:
        return float(self.decay) ** (step // self.every)


@dataclass(frozen=True)
class PiecewiseLinear:
    """Straight lines through ``(step, factor)`` points; flat before the first of them and after the last.

    >>> PiecewiseLinear(((0, 0.0), (10, 1.0), (30, 0.5))).factor(20)
    0.75
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        points = tuple(_point(point) for point in _listed(self.points))
        steps = [step for step, _ in points]
        if not points or steps != sorted(set(steps)):
            raise InvalidValue("points", allowed="at least one, with steps that rise", given=self.points)
        object.__setattr__(self, "points", points)

    def factor(self, step: int) -> float:
        after = bisect.bisect_right(self.points, step, key=lambda point: point[0])
        if after in (0, len(self.points)):
            return self.points[max(after - 1, 0)][1]
        (start, low), (end, high) = self.points[after - 1 : after + 1]
        passed = (step - start) / (end - start)
        return (1 - passed) * low + passed * high


@dataclass(frozen=True, kw_only=True)
class PiecewiseConstant:
    """The factor of the last of these ``(step, factor)`` points that is reached, times another schedule.

    >>> PiecewiseConstant(points=((0, 2.0), (10, 1.0))).factor(9)
    2.0
    """

    points: tuple[tuple[int, float], ...]
    after: Schedule = CONSTANT

    def __post_init__(self) -> None:
        object.__setattr__(self, "points", PiecewiseLinear(self.points).points)  # which checks them
        if self.points[0][0] != 0:
            raise InvalidValue("points", allowed="the first at step 0", given=self.points)

    def factor(self, step: int) -> float:
        reached = bisect.bisect_right(self.points, step, key=lambda point: point[0])
        return self.points[reached - 1][1] * self.after.factor(step)


_TYPE_OF: dict[str, Any] = {
    "constant": Constant,
    "linear-warmup": LinearWarmup,
    "cosine": Cosine,
    "linear-decay": LinearDecay,
    "step-decay": StepDecay,
    "piecewise-linear": PiecewiseLinear,
    "piecewise-constant": PiecewiseConstant,
}
_KIND_OF = {kind: name for name, kind in _TYPE_OF.items()}
_DEEPEST_NESTING = 10


def by_name(name: str, *, steps: int) -> Schedule:
    """A schedule over a whole run of so many steps: constant, cosine (to zero) or linear (to zero).

    >>> by_name("cosine", steps=100).factor(50)
    0.5
    """
    cosine, linear = Cosine(total_steps=steps), LinearDecay(steps=steps)
    made: dict[str, Schedule] = {"constant": CONSTANT, "cosine": cosine, "linear": linear}
    if name not in made:
        allowed = f"one of {', '.join(made)}, a schedule of lehr.schedules, or its table"
        raise InvalidValue("schedule", allowed=allowed, given=name)
    return made[name]


def to_json(schedule: Schedule) -> dict[str, object]:
    """The JSON form of a schedule of this module."""
    if type(schedule) not in _KIND_OF:
        raise InvalidValue("schedule", allowed="one of lehr.schedules, to be written down", given=schedule)
    fields = {field.name: getattr(schedule, field.name) for field in dataclasses.fields(schedule)}  # type: ignore[arg-type]
    if "after" in fields:
        fields["after"] = to_json(fields["after"])
    if "points" in fields:
        fields["points"] = [list(point) for point in fields["points"]]
    return {"kind": _KIND_OF[type(schedule)], **fields}


def from_json(shape: object, *, name: str = "schedule") -> Schedule:
    """The schedule of a JSON form. Unknown kinds, missing or surplus fields and bad values are refused by ``name``."""
    return _from_json(shape, name, levels_left=_DEEPEST_NESTING)


def _from_json(shape: object, name: str, *, levels_left: int) -> Schedule:
    fields = dict(shape) if isinstance(shape, dict) else {}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _TYPE_OF or not levels_left:
        raise InvalidValue(name, allowed="an object whose kind is one of " + ", ".join(_TYPE_OF), given=shape)
    expected = {field.name for field in dataclasses.fields(_TYPE_OF[kind])}
    if set(fields) != expected:
        raise InvalidValue(f"{name} {kind}", allowed=f"with the fields {sorted(expected)}", given=list(fields))
    if "after" in fields:
        fields["after"] = _from_json(fields["after"], name, levels_left=levels_left - 1)
    schedule: Schedule = _TYPE_OF[kind](**fields)
    return schedule


def _fraction(**named: object) -> float:
    value = validate.non_negative(**named)
    if not value <= 1:
        (name,) = named
        raise InvalidValue(name, allowed="a number in [0, 1]", given=value)
    return value


def _listed(points: object) -> Sequence[object]:
    if not isinstance(points, list | tuple):
        raise InvalidValue("points", allowed="a sequence of pairs (step, factor)", given=points)
    return points


def _point(point: object) -> tuple[int, float]:
    if not isinstance(point, list | tuple) or len(point) != 2:
        raise InvalidValue("points", allowed="a sequence of pairs (step, factor)", given=point)
    step, factor = point
    return validate.count(minimum=0, step=step), validate.non_negative(factor=factor)
