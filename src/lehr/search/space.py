"""What a search varies: settings by their names, each with its choices or its range.

A name is a word of ``WORDS``, which stands for what people vary, or ``table.key`` of a configuration. Some settings
are asked for only where they mean something: momentum and dampening with SGD, more than one view with an augmentation.

>>> space = Space.read({"optimizer": ["sgd", "adam"], "momentum": [0.0, 0.9], "method": {"clip_norm": [0.1, 1.0]}})
>>> [dimension.name for dimension in space.dimensions]
['optimizer', 'momentum', 'method.clip_norm']
>>> space.chosen(lambda dimension: dimension.tried[-1])
{'optimizer': 'adam', 'method.clip_norm': 1.0}
>>> len(space.combinations())
6
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import torch

from lehr.configuration import TABLES
from lehr.errors import InvalidValue
from lehr.search.dimension import Dimension, Value, is_range
from lehr.search.dimension import read as read_dimension

Parameters = dict[str, Value]  # what a trial was given, as a study keeps it

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "optimizer": "of the update: sgd, adam, adamw, ...",
        "learning_rate": "of the update, at the steps of the configuration",
        "adaptive_learning_rate": "the same, for every optimizer but sgd, whose rates are of another size",
        "momentum": "of sgd",
        "dampening": "of sgd with momentum",
        "ema_decay": "of an exponential average of the weights; 0 for none",
        "augmentation": "a family of augmentations, by its name",
        "views": "augmented copies of a record, where there is an augmentation",
        "network": "a network by its name, or a whole table [model]",
        "batch_factor": "what the batch is multiplied by at the same total amount of noise: steps are divided by its "
        "square, by which the learning rate is multiplied",
    }
)
SGD = "sgd"
DECIDING = ("optimizer", "momentum", "augmentation")  # what others are asked for by
# What is never varied: it says on whom the search is, or is the promise that it is held to.
FIXED = ("data.", "privacy.delta", "privacy.epsilon", "privacy.settings_chosen_on", "privacy.stated")


@dataclass(frozen=True)
class Space:
    """The settings that a search varies, those first that decide whether others are asked for."""

    dimensions: tuple[Dimension, ...]

    @classmethod
    def read(cls, shape: object) -> Self:
        """The space of ``[search.space]``. A dotted key may be quoted or not."""
        if not isinstance(shape, Mapping) or not shape:
            raise InvalidValue("[search.space]", allowed="a table of settings with their choices", given=shape)
        found = {name: read_dimension(name, value) for name, value in _flattened(shape)}
        for name in found:
            _refuse_unknown(name)
        first = [name for name in WORDS if name in found]
        return cls(tuple(found[name] for name in (*first, *(name for name in found if name not in WORDS))))

    def __contains__(self, name: str) -> bool:
        return any(dimension.name == name for dimension in self.dimensions)

    def chosen(self, pick: Callable[[Dimension], Value]) -> Parameters:
        """What is picked, setting by setting, leaving out those that mean nothing beside what was picked before."""
        parameters: Parameters = {}
        for dimension in self.dimensions:
            if self._is_asked(dimension.name, parameters):
                parameters[dimension.name] = pick(dimension)
        return parameters

    def drawn(self, generator: torch.Generator) -> Parameters:
        """A draw from the whole space."""
        return self.chosen(lambda dimension: dimension.drawn(generator))

    def meant(self, parameters: Mapping[str, Value]) -> dict[str, Any]:
        """The settings themselves, of what a study keeps."""
        return {d.name: d.meant(parameters[d.name]) for d in self.dimensions if d.name in parameters}

    def combinations(self) -> list[Parameters]:
        """All that can be chosen, each once; refused where a range has no steps."""
        found: list[Parameters] = [{}]
        for dimension in self.dimensions:
            if (listed := dimension.listed) is None:
                allowed = "a list of choices, or a range with a step, where every combination is tried"
                raise InvalidValue(f"{dimension.name} of [search.space]", allowed=allowed, given=dimension)
            found = [
                {**before, dimension.name: value}
                for before in found
                for value in listed
                if self._is_asked(dimension.name, before)
            ] + [before for before in found if not self._is_asked(dimension.name, before)]
        return found

    def _is_asked(self, name: str, picked: Mapping[str, Value]) -> bool:
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
        if isinstance(value, Mapping) and not is_range(value) and not value.keys() & {"low", "high"}:
            yield from _flattened(value, f"{before}{key}.")
        else:
            yield before + key, value


def _refuse_unknown(name: str) -> None:
    table, dot, key = name.partition(".")
    known = TABLES.get(table)
    is_key = bool(dot) and table in TABLES and (known is None or key in known)
    if name.startswith(FIXED) or not (name in WORDS or is_key):
        allowed = f"one of {', '.join(WORDS)}, or table.key of what a configuration says of its run"
        raise InvalidValue("key of [search.space]", allowed=allowed, given=name)
