"""The methods by their names, with settings that are checked before anything else happens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from lehr import validate
from lehr.errors import InvalidValue
from lehr.mechanism import Method
from lehr.methods.auto_s import auto_s
from lehr.methods.dpsgd import dpsgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.update import schedules
from lehr.update.torch_optim import Update

METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(
    {"auto-s": auto_s, "dpsgd": dpsgd, "sa-dpsgd": sa_dpsgd}
)


def named(name: str, **settings: object) -> Method:
    """The method of this name. A schedule and an update may be given in their JSON forms.

    >>> named("dpsgd", clip_nrom=1.0)
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: setting of dpsgd must be one of clip_norm, learning_rate, momentum, schedule, update; \
given: 'clip_nrom'
    """
    function = METHODS[validate.one_of(METHODS, method=name)]
    known = inspect.signature(function).parameters
    for setting in settings:
        if setting not in known:
            raise InvalidValue(f"setting of {name}", allowed="one of " + ", ".join(sorted(known)), given=setting)
    _refuse_two_updates(settings)
    made = function(**{setting: _read(setting, value) for setting, value in settings.items()})
    return replace(made, settings={setting: _written(setting, value) for setting, value in settings.items()})


def _read(setting: str, value: object) -> object:
    if setting == "schedule" and not hasattr(value, "factor"):
        return schedules.from_json(value)
    return Update.from_json(value) if setting == "update" and not hasattr(value, "build") else value


def _written(setting: str, value: Any) -> object:
    """The JSON form, from which a run that is resumed makes the method again."""
    if isinstance(value, dict) or setting not in ("schedule", "update"):
        return value
    return schedules.to_json(value) if setting == "schedule" else value.to_json()


def _refuse_two_updates(settings: Mapping[str, object]) -> None:
    doubled = sorted({"learning_rate", "momentum", "schedule"} & settings.keys()) if "update" in settings else []
    if doubled:
        raise InvalidValue("update", allowed="given alone: it has its own " + ", ".join(doubled), given=doubled)
