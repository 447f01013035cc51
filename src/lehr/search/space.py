"""What a search varies, and how chosen settings are put into a configuration.

A setting is a word of ``WORDS``, or ``table.key`` of a configuration; it has a list of choices or a range of numbers.
Some settings are asked for only where they mean something: momentum and dampening with SGD, views with an augmentation.

>>> space = Space.read({"optimizer": ["sgd", "adam"], "momentum": [0.0, 0.9], "method": {"clip_norm": [0.1, 1.0]}})
>>> [dimension.name for dimension in space.dimensions]
['optimizer', 'momentum', 'method.clip_norm']
>>> space.chosen(lambda dimension: dimension.tried[-1])
{'optimizer': 'adam', 'method.clip_norm': 1.0}
>>> len(space.combinations())
6
>>> read_dimension("learning_rate", {"low": 0.1, "high": 10, "log": True})
Range(name='learning_rate', low=0.1, high=10.0, log=True, step=None, is_whole=False)

``batch_factor`` f changes the batch at the same total amount of noise (TAN: Sander et al. 2023, Table 3): the batch is
multiplied by f, the steps are divided by f², and the learning rate is multiplied by f². The noise multiplier stays; if
an ε is asked for, it is calibrated again.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from lehr import schedules, validate
from lehr.config import RunConfig, is_known
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.methods.by_name import METHODS
from lehr.optim.optimizers import Update
from lehr.planning.plan import Plan
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT
from lehr.training.prepare import method_and_plan

Value = bool | int | float | str  # as a study stores it: a table or a list is stored as its JSON text


@dataclass(frozen=True)
class Choices:
    """A setting with a list of values."""

    name: str
    values: tuple[Any, ...]

    @property
    def tried(self) -> tuple[Value, ...]:
        """The values that are checked before the first trial, as a study stores them: all of them."""
        return tuple(map(_stored, self.values))

    @property
    def listed(self) -> tuple[Value, ...] | None:
        """All values, as a study stores them."""
        return self.tried

    def meant(self, stored: Value) -> Any:
        """The value that a study stores as this."""
        return self.values[self.tried.index(stored)]

    def drawn(self, generator: torch.Generator) -> Value:
        """A uniform draw."""
        return self.tried[int(torch.randint(len(self.values), (), generator=generator))]


@dataclass(frozen=True)
class Range:
    """A setting that is a number in a closed range."""

    name: str
    low: float
    high: float
    log: bool = False
    step: float | None = None
    is_whole: bool = False

    @property
    def tried(self) -> tuple[Value, ...]:
        """The values that are checked before the first trial: both ends."""
        return self._number(self.low), self._number(self.high)

    @property
    def listed(self) -> tuple[Value, ...] | None:
        """All values of a range with steps."""
        if self.step is None:
            return None
        num_steps = math.floor((self.high - self.low) / self.step + 1e-9)
        return tuple(self._number(self.low + place * self.step) for place in range(num_steps + 1))

    def meant(self, stored: Value) -> Any:
        """The number itself."""
        return stored

    def drawn(self, generator: torch.Generator) -> Value:
        """A uniform draw, of the logarithm in a logarithmic range."""
        if self.listed is not None:
            return self.listed[int(torch.randint(len(self.listed), (), generator=generator))]
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        if self.log:
            return min(self.high, self.low * math.exp(math.log(self.high / self.low) * share))
        return self.low + (self.high - self.low) * share

    def _number(self, value: float) -> Value:
        return round(value) if self.is_whole else value


Dimension = Choices | Range


def read_dimension(name: str, shape: Any) -> Dimension:
    """The setting of its form in a file: a list of choices, or ``{ low, high }`` with ``log`` or ``step``."""
    key = f"{name} of [search.space]"
    if isinstance(shape, list):
        if not shape or len({repr(_stored(value)) for value in shape}) < len(shape):
            raise InvalidValue(key, allowed="a list of one or more different choices", given=shape)
        return Choices(name, tuple(shape))
    if not isinstance(shape, Mapping) or not {"low", "high"} <= shape.keys() <= {"low", "high", "log", "step"}:
        raise InvalidValue(key, allowed="a list of choices or { low, high }, with log or step", given=shape)
    low, high = (validate.finite(**{f"{end} of {key}": shape[end]}) for end in ("low", "high"))
    log = validate.true_or_false(**{f"log of {key}": shape.get("log", False)})
    step = None if "step" not in shape else validate.positive(**{f"step of {key}": shape["step"]})
    if not low < high:
        raise InvalidValue(key, allowed="with low < high", given=shape)
    if log and (step is not None or not low > 0):
        raise InvalidValue(key, allowed="without step and with low > 0 where it is logarithmic", given=shape)
    is_whole = step is not None and all(isinstance(shape[key], int) for key in ("low", "high", "step"))
    return Range(name, low, high, log, step, is_whole)


def _stored(value: object) -> Value:
    return value if isinstance(value, bool | int | float | str) else strict_json.dumps(value)


Parameters = dict[str, Value]  # the settings of a trial, as a study stores them

# In this order: a setting may decide whether a later one applies.
WORDS = (
    "optimizer",  # sgd, adam, adamw, ...
    "learning_rate",  # at the steps of the configuration
    "adaptive_learning_rate",  # for every optimizer but sgd, whose rates are of another size
    "momentum",  # of sgd
    "dampening",  # of sgd with momentum
    "ema_decay",  # of an exponential average of the weights; 0 for none
    "augmentation",  # a family by name
    "views",  # augmented copies of a record
    "network",  # by name, or a whole table [model]
    "batch_factor",  # multiplies the batch at the same total amount of noise
)
SGD = "sgd"
DECIDING = ("optimizer", "momentum", "augmentation")  # they decide whether others apply
# Never varied: the records, and the guarantee.
FIXED = ("data.", "privacy.delta", "privacy.epsilon", "privacy.settings_chosen_on", "privacy.stated")


@dataclass(frozen=True)
class Space:
    """The settings that a search varies; those come first that decide whether others apply."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def read(cls, shape: object) -> Self:
        """The space of ``[search.space]``. A dotted key may be quoted or not."""
        if not isinstance(shape, Mapping) or not shape:
            raise InvalidValue("[search.space]", allowed="a table of settings with their choices", given=shape)
        found = {name: read_dimension(name, value) for name, value in _flattened(shape)}
        for name in found:
            table, dot, key = name.partition(".")
            if name.startswith(FIXED) or not (name in WORDS or (dot and is_known(table, key))):
                allowed = f"one of {', '.join(WORDS)}, or table.key of a configuration"
                raise InvalidValue("key of [search.space]", allowed=allowed, given=name)
        first = [name for name in WORDS if name in found]
        return cls(tuple(found[name] for name in (*first, *(name for name in found if name not in WORDS))))

    def __contains__(self, name: str) -> bool:
        return any(dimension.name == name for dimension in self.dimensions)

    def chosen(self, pick: Callable[[Dimension], Value]) -> Parameters:
        """The picked value of each setting, without settings that do not apply with the values picked before."""
        parameters: Parameters = {}
        for dimension in self.dimensions:
            if self._applies(dimension.name, parameters):
                parameters[dimension.name] = pick(dimension)
        return parameters

    def drawn(self, generator: torch.Generator) -> Parameters:
        """A draw from the whole space."""
        return self.chosen(lambda dimension: dimension.drawn(generator))

    def meant(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        """The settings that a study stores as ``parameters``."""
        return {d.name: d.meant(parameters[d.name]) for d in self.dimensions if d.name in parameters}

    def combinations(self) -> list[Parameters]:
        """All combinations, each once; a range without steps is refused."""
        found: list[Parameters] = [{}]
        for dimension in self.dimensions:
            if (listed := dimension.listed) is None:
                allowed = "a list of choices, or a range with a step, for a grid"
                raise InvalidValue(f"{dimension.name} of [search.space]", allowed=allowed, given=dimension)
            applies = [self._applies(dimension.name, before) for before in found]
            found = [
                {**before, dimension.name: value}
                for before, does in zip(found, applies, strict=True)
                for value in (listed if does else ())
            ] + [before for before, does in zip(found, applies, strict=True) if not does]
        return found

    def _applies(self, name: str, picked: Mapping[str, Value]) -> bool:
        is_sgd = picked.get("optimizer", SGD) == SGD
        match name:
            case "learning_rate":
                return is_sgd or "adaptive_learning_rate" not in self
            case "adaptive_learning_rate":
                return not is_sgd
            case "momentum":
                return is_sgd
            case "dampening":
                return is_sgd and picked.get("momentum", 1) != 0
            case "views":
                return picked.get("augmentation") != "none"
            case _:
                return True


def _flattened(shape: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Names and forms: TOML reads ``method.clip_norm`` without quotation marks as a table in a table."""
    for key, value in shape.items():
        if isinstance(value, Mapping) and not value.keys() & {"low", "high"}:
            yield from _flattened(value, f"{before}{key}.")
        else:
            yield before + key, value


OF_THE_UPDATE = ("optimizer", "learning_rate", "adaptive_learning_rate", "momentum", "dampening")
# What a method says of its update where that is plain SGD.
SHORT = ("learning_rate", "momentum", "optimizer", "schedule")


def apply_settings(configuration: RunConfig, settings: Mapping[str, Any], *, plan: Plan) -> RunConfig:
    """The configuration with these settings; ``plan`` is its plan without them."""
    changed = configuration.with_values(**_tables(settings))
    if "network" in settings:
        changed = changed.with_tables(model=_model(changed, settings["network"]))
    factor = validate.positive(batch_factor=settings.get("batch_factor", 1))
    if factor != 1:
        privacy: dict[str, Any] = {**changed.privacy, "expected_batch_size": plan.expected_batch_size * factor}
        privacy["steps"] = max(1, round(plan.steps / factor**2))
        if "epsilon" in privacy:  # the noise is calibrated again
            privacy.pop("noise_multiplier", None)
        else:
            privacy["noise_multiplier"] = plan.noise_multiplier
        training = dict(changed.training)
        if "evaluate_every" in training:  # as many evaluations, so that runs of other lengths can be compared
            every = validate.count(evaluate_every=training["evaluate_every"])
            training["evaluate_every"] = max(1, round(every / factor**2))
        changed = changed.with_tables(privacy=privacy, training=training)
    if factor != 1 or any(name in settings for name in OF_THE_UPDATE):
        changed = changed.with_tables(method=_method(changed, settings, plan=plan, rate_factor=factor**2))
    return changed


def takes_update(configuration: RunConfig) -> bool:
    """Whether the method can have any optimizer."""
    name = configuration.method.get("name", "dpsgd")
    return name in METHODS and "update" in inspect.signature(METHODS[name]).parameters


def why_not_scaled(plan: Plan, method: Method) -> str | None:
    """Why batch and steps cannot be changed together, where they cannot."""
    if plan.stops_at_accepted is not None or plan.limit is not None or not plan.has_equal_steps:
        return "steps that are all taken, cost the same and ask the records for nothing else"
    if not plan.noise_multiplier:
        return "noise: without it there is no total amount of it to keep"
    if method.update.schedule != CONSTANT:
        return "a constant learning rate: a schedule is made for its number of steps"
    return None


def _tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of keys that are said as they are, and of words that stand for one key."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        table, dot, key = name.partition(".")
        if dot:
            tables.setdefault(table, {})[key] = value
    training = {key: settings[key] for key in ("augmentation", "views") if key in settings}
    if settings.get("augmentation") == "none":
        training["views"] = 1
    if "ema_decay" in settings:
        decay = settings["ema_decay"]
        training["averaging"] = {"kind": "exponential", "decay": decay} if decay else {"kind": "none"}
    return tables | ({"training": {**tables.get("training", {}), **training}} if training else {})


def _model(configuration: RunConfig, network: object) -> dict[str, Any]:
    """A network of another name has arguments of its own."""
    if isinstance(network, Mapping):
        return dict(network)
    name = validate.text(network=network)
    return dict(configuration.model) if configuration.model.get("network") == name else {"network": name}


def _method(configuration: RunConfig, settings: Mapping[str, Any], *, plan: Plan, rate_factor: float) -> dict[str, Any]:
    if not takes_update(configuration):  # its own optimizer has settings of the same names
        said = {**configuration.method, **{key: settings[key] for key in OF_THE_UPDATE if key in settings}}
        if rate_factor != 1:
            if said.get("learning_rate") is None:
                allowed = "given beside batch_factor, which multiplies it"
                raise InvalidValue("learning_rate", allowed=allowed, given=None)
            said["learning_rate"] = validate.positive(learning_rate=said["learning_rate"]) * rate_factor
        return said
    method, _ = method_and_plan(configuration.with_plan(plan))
    if not isinstance(method.update, Update):
        raise InvalidValue("update", allowed="one of an optimizer by its name", given=method.update)
    before: dict[str, Any] = method.update.to_json()
    optimizer, schedule = settings.get("optimizer", before["optimizer"]), before["schedule"]
    arguments = dict(before["arguments"]) if optimizer == before["optimizer"] else {}
    arguments |= {name: settings[name] for name in ("momentum", "dampening") if name in settings}
    if arguments.get("momentum") == 0:
        arguments.pop("dampening", None)
    rate = settings.get("adaptive_learning_rate", settings.get("learning_rate", before["learning_rate"]))
    rate = validate.positive(learning_rate=rate) * rate_factor
    said = {key: value for key, value in configuration.method.items() if key not in (*SHORT, "update")}
    if optimizer == SGD and not any(value for name, value in arguments.items() if name != "momentum"):
        said |= {"learning_rate": rate, "momentum": arguments.get("momentum", 0.0)}
        return said if schedule == schedules.to_json(CONSTANT) else {**said, "schedule": schedule}
    return said | {
        "update": {"optimizer": optimizer, "learning_rate": rate, "arguments": arguments, "schedule": schedule}
    }


FURTHEST = 10.0  # how many times smaller or larger than the configuration's own a learning rate may be
SMALLEST_ADAPTIVE, LARGEST_ADAPTIVE = 1e-4, 1e-1  # of optimizers that divide by the size of gradients


def usual_space(configuration: RunConfig, plan: Plan, *, searched_on: Mapping[str, Any]) -> Space:
    """The settings that are varied where a file names none; ``plan`` is that of the configuration."""
    method, _ = method_and_plan(configuration.with_plan(plan))
    dimensions: list[Dimension] = []
    if takes_update(configuration) and isinstance(method.update, Update):
        rate = method.update.learning_rate if method.update.optimizer == SGD else 0.5
        dimensions += [
            Choices("optimizer", (SGD, "adam", "adamw")),
            Range("learning_rate", rate / FURTHEST, rate * FURTHEST, log=True),
            Range("adaptive_learning_rate", SMALLEST_ADAPTIVE, LARGEST_ADAPTIVE, log=True),
            Choices("momentum", (0.0, 0.9)),
            Choices("dampening", (0.0, 0.9)),
        ]
    dimensions.append(Choices("ema_decay", (0.0, 0.9, 0.99, 0.999)))
    if not any(key.endswith("npz") for key in searched_on):
        dimensions += [Choices("augmentation", ("none", "flip_crop", "rrc")), Choices("views", (1, 4))]
    if why_not_scaled(plan, method) is None:
        can_double = 2 * plan.expected_batch_size <= plan.records and plan.steps >= 2**2
        dimensions.append(Choices("batch_factor", (0.5, 1, 2) if can_double else (0.5, 1)))
    return Space(tuple(dimensions))
