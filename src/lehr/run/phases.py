"""Phases of a training: which layers are trained, at which rate, and with how many views, from which step on.

Every phase samples, clips, adds noise and is charged alike: all steps are steps of one plan. A phase depends on the
number of the step alone. The layers that it does not train get no noise, because nothing is released about them.

>>> head_first = phases_from_json([{"steps": 25, "trained": ["head"], "learning_rate": 2.0}, {}])
>>> first_steps(head_first)
[0, 25]
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from torch import nn

from lehr import validate
from lehr.acceptance.rules import Always
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.networks.layers import parameters_below
from lehr.optim.optimizers import Update
from lehr.privacy.noise import IsotropicNoise, NoNoise
from lehr.run.mechanism import Method
from lehr.schedules import PiecewiseConstant


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A number of steps, and how they are taken. What is omitted is as for the rest of the run.

    ``trained`` are paths of layers or parameters, such as "head"; ``learning_rate`` and ``views`` replace the run's.
    The last phase has no ``steps``: it lasts until the end of the plan.
    """

    steps: int | None = None
    trained: tuple[str, ...] = ()
    learning_rate: float | None = None
    views: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "views"):
            if getattr(self, name) is not None:
                validate.count(**{name: getattr(self, name)})
        if self.learning_rate is not None:
            validate.positive(learning_rate=self.learning_rate)
        given: object = self.trained
        paths = list(given) if isinstance(given, tuple) else given
        object.__setattr__(self, "trained", strict_json.list_of("trained", paths, _path))

    @classmethod
    def of(cls, shape: object) -> Phase:
        """The phase of a table, or the phase itself."""
        if isinstance(shape, Phase):
            return shape
        given, known = strict_json.check_object("phase", shape), [each.name for each in fields(cls)]
        for name in given:
            validate.one_of(known, **{"key of a phase": name})
        return cls(**given)

    def names(self, model: nn.Module) -> frozenset[str]:
        """The parameters that it trains, among those that the model trains."""
        trainable = {name for name, value in model.named_parameters() if value.requires_grad}
        found = trainable.intersection(*[parameters_below(model, *self.trained)] if self.trained else ())
        if not found:
            raise InvalidValue("trained", allowed="layers with parameters that require a gradient", given=self.trained)
        return frozenset(found)


def phases_from_json(shape: object) -> tuple[Phase, ...]:
    """The phases of a run. Without any there is one, which is the whole run."""
    if shape is None:
        return (Phase(),)
    listed = list(shape) if isinstance(shape, tuple) else shape
    found: tuple[Phase, ...] = strict_json.list_of("phases", listed, Phase.of)
    if not found or any(phase.steps is None for phase in found[:-1]) or found[-1].steps is not None:
        allowed = "one or more, all with steps but the last, which lasts until the end"
        raise InvalidValue("phases", allowed=allowed, given=shape)
    return found


def first_steps(phases: Sequence[Phase]) -> list[int]:
    """The step, counted from zero, that each phase begins with."""
    return [0, *accumulate(phase.steps or 0 for phase in phases[:-1])]


def with_phase_rates(method: Method, phases: Sequence[Phase]) -> Method:
    """The method with the learning rate of each phase in its schedule."""
    if all(phase.learning_rate is None for phase in phases):
        return method
    update = method.update
    if not isinstance(update, Update):
        allowed = "phases without a learning_rate for an optimizer of your own"
        raise InvalidValue("phases", allowed=allowed, given=[phase.learning_rate for phase in phases])
    factors = [(phase.learning_rate or update.learning_rate) / update.learning_rate for phase in phases]
    points = tuple(zip(first_steps(phases), factors, strict=True))
    return replace(method, update=replace(update, schedule=PiecewiseConstant(points=points, after=update.schedule)))


def check_phases(phases: Sequence[Phase], method: Method, *, steps: int, is_sharded: bool) -> None:
    """Raise an error for phases that do not fit into the plan, or a method whose state belongs to all parameters."""
    if len(phases) == 1 and not phases[0].trained:
        return
    *_, last = first_steps(phases)
    if not last < steps:
        raise InvalidValue("phases", allowed=f"fewer than the {steps} steps of the plan before the last", given=last)
    is_plain = isinstance(method.acceptance, Always) and type(method.noise) in (IsotropicNoise, NoNoise)
    if not is_plain or method.clipping.needs_coordinates or method.clipping.unproven is not None:
        allowed = "omitted for a method with acceptance, or with clipping or noise by coordinate"
        raise InvalidValue("phases", allowed=allowed, given=method.name)
    if is_sharded:
        raise InvalidValue("phases", allowed="omitted with sharded weights", given=len(phases))


def set_trained(model: nn.Module, names: Collection[str]) -> None:
    """Let these parameters, and no others, require a gradient."""
    for name, value in model.named_parameters():
        value.requires_grad_(name in names)


@contextmanager
def training_only(model: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """Let only these parameters require a gradient, and at the end those that did before."""
    before = {name for name, value in model.named_parameters() if value.requires_grad}
    set_trained(model, before if names is None else names)
    try:
        yield
    finally:
        set_trained(model, before)


def _path(shape: object) -> str:
    return validate.text(trained=shape)
