"""What a search varies, and how chosen settings are put into a configuration.

A setting is a word of ``WORDS``, or ``table.key`` of a configuration; it has a list of choices or a range of numbers.
Some settings are varied only where they mean something: momentum and dampening with SGD, views with an augmentation.

>>> space = Space.read({"optimizer": ["sgd", "adam"], "momentum": [0.0, 0.9], "method": {"clip_norm": [0.1, 1.0]}})
>>> list(space.distributions)
['optimizer', 'momentum', 'method.clip_norm']
>>> space.choose(lambda name: extremes(space.distributions[name])[-1])
{'optimizer': 'adam', 'method.clip_norm': 1.0}
>>> len(space.combinations())
6
>>> Space.read({"learning_rate": {"low": 0.1, "high": 10, "log": True}}).distributions
{'learning_rate': FloatDistribution(high=10.0, log=True, low=0.1, step=None)}

``batch_factor`` f changes the batch at the same total amount of noise (TAN: Sander et al. 2023, Table 3): the batch is
multiplied by f, the steps are divided by f², and the learning rate is multiplied by f². The noise multiplier stays; if
an ε is asked for, it is calibrated again.
"""

from __future__ import annotations

import inspect
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from lehr import schedules, validate
from lehr.config import RunConfig, is_known
from lehr.errors import InvalidValue, MissingExtra
from lehr.files import strict_json
from lehr.methods.by_name import METHODS
from lehr.optim.optimizers import Update
from lehr.planning.plan import Plan
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT
from lehr.training.prepare import method_and_plan

try:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
except ImportError as error:
    raise MissingExtra("optuna", extra="search") from error

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Value = bool | int | float | str  # as a study stores it: a table or a list is stored as its JSON text
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
# Never varied: the records, and the guarantee.
FIXED = ("data.", "privacy.delta", "privacy.epsilon", "privacy.settings_chosen_on", "privacy.stated")


def read_distribution(name: str, shape: Any) -> Distribution:
    """The values of a setting: a list of choices, or ``{ low, high }`` with ``log`` or ``step``."""
    key = f"{name} of [search.space]"
    if isinstance(shape, list):
        values = [v if isinstance(v, bool | int | float | str) else strict_json.dumps(v) for v in shape]
        if not values or len(set(map(repr, values))) < len(values):
            raise InvalidValue(key, allowed="a list of one or more different choices", given=shape)
        return CategoricalDistribution(values)
    if not isinstance(shape, Mapping) or not {"low", "high"} <= shape.keys() <= {"low", "high", "log", "step"}:
        raise InvalidValue(key, allowed="a list of choices or { low, high }, with log or step", given=shape)
    numbers = {end: shape[end] for end in ("low", "high", "step") if end in shape}
    for end, number in numbers.items():
        validate.finite(**{f"{end} of {key}": number})
    log = validate.true_or_false(**{f"log of {key}": shape.get("log", False)})
    if not shape["low"] < shape["high"] or (log and "step" in shape):
        raise InvalidValue(key, allowed="with low < high, and either log or step", given=shape)
    is_whole = len(numbers) == 3 and all(isinstance(number, int) for number in numbers.values())
    try:
        with warnings.catch_warnings(action="ignore"):  # that a range ends with its last step
            return IntDistribution(**numbers, log=log) if is_whole else FloatDistribution(**numbers, log=log)
    except ValueError as error:
        raise InvalidValue(key, allowed=f"a range ({error})", given=shape) from error


def extremes(distribution: Distribution) -> tuple[Value, ...]:
    """All choices, or both ends of a range: the values that are checked before the first trial."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices  # type: ignore[return-value]  # none of them is None
    return distribution.low, distribution.high


def all_values(distribution: Distribution) -> tuple[Value, ...] | None:
    """Every value; None for a range without steps."""
    if isinstance(distribution, CategoricalDistribution):
        return extremes(distribution)
    if distribution.step is None:
        return None
    count = round((distribution.high - distribution.low) / distribution.step) + 1
    return tuple(distribution.low + index * distribution.step for index in range(count))


def draw(distribution: Distribution, generator: torch.Generator) -> Value:
    """A uniform draw, of the logarithm in a logarithmic range."""
    if (values := all_values(distribution)) is not None:
        return values[int(torch.randint(len(values), (), generator=generator))]
    low, high = map(float, extremes(distribution))
    share = float(torch.rand((), generator=generator, dtype=torch.float64))
    if isinstance(distribution, FloatDistribution) and distribution.log:
        return min(high, low * math.exp(math.log(high / low) * share))
    return low + (high - low) * share


@dataclass(frozen=True)
class Space:
    """The values of every setting that a search varies, in the order in which they are chosen."""

    distributions: Mapping[str, Distribution]

    @classmethod
    def read(cls, shape: object) -> Self:
        """The space of ``[search.space]``. A dotted key may be quoted or not."""
        if not isinstance(shape, Mapping) or not shape:
            raise InvalidValue("[search.space]", allowed="a table of settings with their choices", given=shape)
        found = {name: read_distribution(name, value) for name, value in _flatten(shape)}
        for name in found:
            table, dot, key = name.partition(".")
            if name.startswith(FIXED) or not (name in WORDS or (dot and is_known(table, key))):
                allowed = f"one of {', '.join(WORDS)}, or table.key of a configuration"
                raise InvalidValue("key of [search.space]", allowed=allowed, given=name)
        return cls({name: found[name] for name in (*filter(found.__contains__, WORDS), *found)})

    def choose(self, pick: Callable[[str], Value]) -> Parameters:
        """The picked value of each setting, without settings that do not apply with the values picked before."""
        parameters: Parameters = {}
        for name in self.distributions:
            if self._applies(name, parameters):
                parameters[name] = pick(name)
        return parameters

    def draw(self, generator: torch.Generator) -> Parameters:
        """Random settings."""
        return self.choose(lambda name: draw(self.distributions[name], generator))

    def settings(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        """The settings that a study stores as ``parameters``: tables and lists instead of their JSON texts."""
        return {
            name: strict_json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
            for name, value in parameters.items()
            if name in self.distributions
        }

    def combinations(self) -> list[Parameters]:
        """All combinations, each once; a range without steps is refused."""
        values = {}
        for name, distribution in self.distributions.items():
            values[name] = all_values(distribution)
            if values[name] is None:
                allowed = "a list of choices, or a range with a step, for a grid"
                raise InvalidValue(f"{name} of [search.space]", allowed=allowed, given=distribution)
        found: dict[str, Parameters] = {}
        for each in itertools.product(*values.values()):  # type: ignore[arg-type]
            parameters = self.choose(dict(zip(values, each, strict=True)).__getitem__)
            found.setdefault(repr(parameters), parameters)
        return list(found.values())

    def _applies(self, name: str, picked: Mapping[str, Value]) -> bool:
        is_sgd = picked.get("optimizer", SGD) == SGD
        match name:
            case "learning_rate":
                return is_sgd or "adaptive_learning_rate" not in self.distributions
            case "adaptive_learning_rate":
                return not is_sgd
            case "momentum":
                return is_sgd
            case "dampening":
                return is_sgd and picked.get("momentum", 1) != 0
            case "views":
                return picked.get("augmentation") != "none"
        return True


def _flatten(shape: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """TOML reads ``method.clip_norm`` without quotation marks as a table in a table."""
    for key, value in shape.items():
        if isinstance(value, Mapping) and not value.keys() & {"low", "high"}:
            yield from _flatten(value, f"{before}{key}.")
        else:
            yield before + key, value


OF_THE_UPDATE = ("optimizer", "learning_rate", "adaptive_learning_rate", "momentum", "dampening")
# Of [method], where its update is plain SGD.
SHORT = ("learning_rate", "momentum", "optimizer", "schedule", "weight_decay")


def apply_settings(configuration: RunConfig, settings: Mapping[str, Any], *, plan: Plan) -> RunConfig:
    """The configuration with these settings; ``plan`` is its plan without them."""
    changed = configuration.with_values(**_tables(settings))
    if (network := settings.get("network")) is not None and network != changed.model.get("network"):
        # A network of another name has arguments of its own.
        model = network if isinstance(network, Mapping) else {"network": validate.text(network=network)}
        changed = changed.with_tables(model=model)
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
    """Settings that replace one key of a table."""
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


def _method(configuration: RunConfig, settings: Mapping[str, Any], *, plan: Plan, rate_factor: float) -> dict[str, Any]:
    """The table [method] with another update."""
    if not takes_update(configuration):  # its own optimizer has settings of the same names
        table = {**configuration.method, **{key: settings[key] for key in OF_THE_UPDATE if key in settings}}
        if rate_factor != 1:
            if table.get("learning_rate") is None:
                raise InvalidValue("learning_rate", allowed="given with batch_factor, which multiplies it", given=None)
            table["learning_rate"] = validate.positive(learning_rate=table["learning_rate"]) * rate_factor
        return table
    method, _ = method_and_plan(configuration.with_plan(plan))
    if not isinstance(method.update, Update):
        raise InvalidValue("update", allowed="one of an optimizer by its name", given=method.update)
    update: dict[str, Any] = method.update.to_json()
    optimizer = settings.get("optimizer", update["optimizer"])
    arguments = dict(update["arguments"]) if optimizer == update["optimizer"] else {}
    arguments |= {name: settings[name] for name in ("momentum", "dampening") if name in settings}
    if arguments.get("momentum") == 0:
        arguments.pop("dampening", None)
    rate = settings.get("adaptive_learning_rate", settings.get("learning_rate", update["learning_rate"]))
    rate = validate.positive(learning_rate=rate) * rate_factor
    table = {key: value for key, value in configuration.method.items() if key not in (*SHORT, "update")}
    if optimizer != SGD or any(value for name, value in arguments.items() if name != "momentum"):
        changed = {"optimizer": optimizer, "learning_rate": rate, "arguments": arguments}
        return table | {"update": {**update, **changed}}
    table |= {"learning_rate": rate, "momentum": arguments.get("momentum", 0.0)}
    return table if update["schedule"] == schedules.to_json(CONSTANT) else {**table, "schedule": update["schedule"]}


FURTHEST = 10.0  # how many times smaller or larger than the configuration's own a learning rate may be
ADAPTIVE_RATES = 1e-4, 1e-1  # of optimizers that divide by the size of gradients


def usual_space(configuration: RunConfig, plan: Plan, *, searched_on: Mapping[str, Any]) -> Space:
    """The settings that are varied where a file names none; ``plan`` is that of the configuration."""
    method, _ = method_and_plan(configuration.with_plan(plan))
    shape: dict[str, Any] = {"ema_decay": [0.0, 0.9, 0.99, 0.999]}
    if takes_update(configuration) and isinstance(method.update, Update):
        rate = method.update.learning_rate if method.update.optimizer == SGD else 0.5
        shape |= {
            "optimizer": [SGD, "adam", "adamw"],
            "learning_rate": {"low": rate / FURTHEST, "high": rate * FURTHEST, "log": True},
            "adaptive_learning_rate": {"low": ADAPTIVE_RATES[0], "high": ADAPTIVE_RATES[1], "log": True},
            "momentum": [0.0, 0.9],
            "dampening": [0.0, 0.9],
        }
    if not any(key.endswith("npz") for key in searched_on):
        shape |= {"augmentation": ["none", "flip_crop", "rrc"], "views": [1, 4]}
    if why_not_scaled(plan, method) is None:
        can_double = 2 * plan.expected_batch_size <= plan.records and plan.steps >= 2**2
        shape["batch_factor"] = [0.5, 1, 2] if can_double else [0.5, 1]
    return Space.read(shape)
