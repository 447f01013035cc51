"""Settings that were chosen, put into a configuration.

A larger batch at the same total amount of noise (TAN: Sander et al. 2023, Table 3): with ``batch_factor`` f the batch
is multiplied by f, the steps are divided by f², and the learning rate is multiplied by f², so that its product with the
steps stays the same. The noise multiplier stays, unless an ε is asked for: then it is found anew, close by, so that
the run still keeps to that ε.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lehr import schedules, validate
from lehr.configuration import Configuration
from lehr.errors import InvalidValue
from lehr.mechanism import Method
from lehr.methods.by_name import METHODS
from lehr.planning.plan import Plan
from lehr.schedules import CONSTANT
from lehr.search.space import SGD
from lehr.update.torch_optim import Update

OF_THE_UPDATE = ("optimizer", "learning_rate", "adaptive_learning_rate", "momentum", "dampening")
SHORT = ("learning_rate", "momentum", "schedule")  # what a method says of its update where that is plain SGD


def applied(configuration: Configuration, settings: Mapping[str, Any], *, plan: Plan) -> Configuration:
    """The configuration with these settings; ``plan`` is what it plans without them."""
    changed = configuration.with_words(**_tables(settings))
    if "network" in settings:
        changed = replace(changed, model=_model(changed, settings["network"]))
    factor = validate.positive(batch_factor=settings.get("batch_factor", 1))
    if factor != 1:
        changed = replace(changed, privacy=_privacy(changed, plan, factor), training=_scores(changed, factor))
    if factor != 1 or any(name in settings for name in OF_THE_UPDATE):
        changed = replace(changed, method=_method(changed, settings, plan=plan, rate_factor=factor**2))
    return changed


def takes_update(configuration: Configuration) -> bool:
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


def _model(configuration: Configuration, network: object) -> dict[str, Any]:
    """A network of another name has arguments of its own."""
    if isinstance(network, Mapping):
        return dict(network)
    name = validate.text(network=network)
    return dict(configuration.model) if configuration.model.get("network") == name else {"network": name}


def _privacy(configuration: Configuration, plan: Plan, factor: float) -> dict[str, Any]:
    """Another batch and other steps, at the same total amount of noise."""
    said = dict(configuration.privacy)
    said |= {"expected_batch_size": plan.expected_batch_size * factor, "steps": max(1, round(plan.steps / factor**2))}
    if "epsilon" in said:
        said.pop("noise_multiplier", None)
        return said
    return said | {"noise_multiplier": plan.noise_multiplier}


def _scores(configuration: Configuration, factor: float) -> dict[str, Any]:
    """As many scores as before, so that runs of other lengths can be compared on their way."""
    said = dict(configuration.training)
    if "evaluate_every" in said:
        said["evaluate_every"] = max(1, round(validate.count(evaluate_every=said["evaluate_every"]) / factor**2))
    return said


def _method(
    configuration: Configuration, settings: Mapping[str, Any], *, plan: Plan, rate_factor: float
) -> dict[str, Any]:
    if not takes_update(configuration):
        return _short(configuration, settings, rate_factor=rate_factor)
    before = _update(replace(configuration, plan=plan))
    optimizer = settings.get("optimizer", before["optimizer"])
    arguments = dict(before["arguments"]) if optimizer == before["optimizer"] else {}
    arguments |= {name: settings[name] for name in ("momentum", "dampening") if name in settings}
    if arguments.get("momentum") == 0:
        arguments.pop("dampening", None)
    rate = settings.get("adaptive_learning_rate", settings.get("learning_rate", before["learning_rate"]))
    rate = validate.positive(learning_rate=rate) * rate_factor
    said = {key: value for key, value in configuration.method.items() if key not in (*SHORT, "update")}
    if optimizer == SGD and not any(value for name, value in arguments.items() if name != "momentum"):
        said |= {"learning_rate": rate, "momentum": arguments.get("momentum", 0.0)}
        schedule = before["schedule"]
        return said if schedule == schedules.to_json(CONSTANT) else {**said, "schedule": schedule}
    update = {"optimizer": optimizer, "learning_rate": rate, "arguments": arguments, "schedule": before["schedule"]}
    return said | {"update": update}


def _short(configuration: Configuration, settings: Mapping[str, Any], *, rate_factor: float) -> dict[str, Any]:
    """For a method with an optimizer of its own, whose settings it has under the same names."""
    said = {**configuration.method, **{key: settings[key] for key in OF_THE_UPDATE if key in settings}}
    if rate_factor != 1:
        rate = said.get("learning_rate")
        if rate is None:
            raise InvalidValue("learning_rate", allowed="given beside batch_factor, which multiplies it", given=None)
        said["learning_rate"] = validate.positive(learning_rate=rate) * rate_factor
    return said


def _update(configuration: Configuration) -> dict[str, Any]:
    method, _ = configuration.method_and_plan()
    if not isinstance(method.update, Update):
        raise InvalidValue("update", allowed="one of an optimizer by its name", given=method.update)
    return method.update.to_json()
