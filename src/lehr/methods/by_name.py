"""The methods by name, with settings that are checked first."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from types import MappingProxyType
from typing import Any

from lehr import methods, schedules, validate
from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy, PublicEnergy, energy_from_json
from lehr.accounting.claims import PublishedRule, published_rule
from lehr.errors import InvalidValue
from lehr.optim.optimizers import Update
from lehr.run.mechanism import Method

# For methods whose paper counts soundly, if not tightly: by this rule ε is larger, and is a bound.
MOMENTS = PublishedRule(paper="Mironov (2017)", theorem="Rényi divergences of all steps, converted by Proposition 3")


def _find() -> dict[str, Callable[..., Method]]:
    """Return every public function of this package's modules that returns a ``Method``."""
    found = {}
    for module in pkgutil.iter_modules(methods.__path__):
        if module.name == "by_name":
            continue
        for name, value in vars(import_module(f"{methods.__name__}.{module.name}")).items():
            if inspect.isfunction(value) and value.__annotations__.get("return") == "Method" and name[0] != "_":
                found[name.replace("_", "-")] = value
    return dict(sorted(found.items()))


METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(_find())


def named(name: str, /, **settings: object) -> Method:
    """Return the method of this name. Schedules, an update and an energy may be given in their JSON forms.

    ``accounting="published"`` counts as the method's paper does, besides what is proven.

    >>> named("dpsgd", clip_nrom=1.0)
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: setting of dpsgd must be one of accounting, clip, clip_norm, clip_schedule, \
learning_rate, momentum, noise, schedule, target_quantile, update; given: 'clip_nrom'
    """
    function = METHODS[validate.one_of(METHODS, method=name)]
    own = set(inspect.signature(function).parameters)
    for setting in settings:
        if setting not in own | {"accounting"}:
            allowed = "one of " + ", ".join(sorted(own | {"accounting"}))
            raise InvalidValue(f"setting of {name}", allowed=allowed, given=setting)
    doubled = sorted({"learning_rate", "momentum", "schedule"} & settings.keys()) if "update" in settings else []
    if doubled:
        raise InvalidValue("update", allowed="given alone: it has its own " + ", ".join(doubled), given=doubled)
    made = function(**{setting: _read(setting, value) for setting, value in settings.items() if setting in own})
    accounting = settings.get("accounting", "proven")
    if "accounting" not in own and (rule := published_rule(MOMENTS, accounting)) is not None:
        if not made.is_private or made.noise.needs_limit:
            allowed = "proven where there is no privacy to count, or costs follow what is released"
            raise InvalidValue("accounting", allowed=allowed, given=accounting)
        made = replace(made, published=rule)
    return replace(made, settings={setting: _written(setting, value) for setting, value in settings.items()})


_SCHEDULES = ("schedule", "clip_schedule")


def _read(setting: str, value: Any) -> object:
    """Return the setting itself, from its JSON form where it is not one already."""
    if setting in _SCHEDULES and not hasattr(value, "factor"):
        return schedules.from_json(value, name=setting)
    if setting == "energy" and not isinstance(value, PublicEnergy | PrivateEnergy | PrivateChoice):
        return energy_from_json(value)
    return Update.from_json(value) if setting == "update" and not hasattr(value, "build") else value


def _written(setting: str, value: Any) -> object:
    """Return the JSON form, from which a resumed run makes the method again."""
    if isinstance(value, dict) or setting not in (*_SCHEDULES, "update", "energy"):
        return value
    return schedules.to_json(value) if setting in _SCHEDULES else value.to_json()
