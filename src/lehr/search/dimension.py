"""One setting of a search: the choices that there are, or a range of numbers.

>>> read("momentum", [0.0, 0.9]).texts
(0.0, 0.9)
>>> read("learning_rate", {"low": 0.1, "high": 10, "log": True})
Range(name='learning_rate', low=0.1, high=10.0, log=True, step=None, is_whole=False)
>>> read("views", {"low": 4, "high": 1})
Traceback (most recent call last):
...
lehr.errors.InvalidValue: views of [search.space] must be with low < high; given: {'low': 4, 'high': 1}
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json

Value = bool | int | float | str  # what a study keeps; a table or a list is kept as its JSON text
RANGE = frozenset({"low", "high", "log", "step"})


@dataclass(frozen=True)
class Choices:
    """A setting that is one of a few."""

    name: str
    values: tuple[Any, ...]

    @property
    def texts(self) -> tuple[Value, ...]:
        """The choices as a study keeps them."""
        return tuple(_kept(value) for value in self.values)

    @property
    def tried(self) -> tuple[Value, ...]:
        """What is tried before the first trial: all of them."""
        return self.texts

    @property
    def listed(self) -> tuple[Value, ...] | None:
        """All that it can be, where that can be listed."""
        return self.texts

    def meant(self, kept: Value) -> Any:
        """The choice itself, of what a study keeps."""
        return self.values[self.texts.index(kept)]

    def drawn(self, generator: torch.Generator) -> Value:
        """One of them, each as likely as the others."""
        return self.texts[int(torch.randint(len(self.values), (), generator=generator))]


@dataclass(frozen=True)
class Range:
    """A setting that is a number between two, both of which it can be."""

    name: str
    low: float
    high: float
    log: bool = False
    step: float | None = None
    is_whole: bool = False

    @property
    def tried(self) -> tuple[Value, ...]:
        """What is tried before the first trial: both ends."""
        return self._number(self.low), self._number(self.high)

    @property
    def listed(self) -> tuple[Value, ...] | None:
        """All that it can be, where it goes by steps."""
        if self.step is None:
            return None
        return tuple(self._number(self.low + place * self.step) for place in range(self._num_steps + 1))

    def meant(self, kept: Value) -> Any:
        """The number itself."""
        return kept

    def drawn(self, generator: torch.Generator) -> Value:
        """A number, each as likely as the others; of a logarithmic range, each ratio."""
        if self.step is not None:
            place = int(torch.randint(self._num_steps + 1, (), generator=generator))
            return self._number(self.low + place * self.step)
        share = float(torch.rand((), generator=generator, dtype=torch.float64))
        if self.log:
            return min(self.high, self.low * math.exp(math.log(self.high / self.low) * share))
        return self.low + (self.high - self.low) * share

    @property
    def _num_steps(self) -> int:
        assert self.step is not None
        return math.floor((self.high - self.low) / self.step + 1e-9)

    def _number(self, value: float) -> Value:
        return round(value) if self.is_whole else value


Dimension = Choices | Range


def read(name: str, shape: object) -> Dimension:
    """The setting of its form in a file: a list of choices, or ``{ low, high }`` with ``log`` or ``step``."""
    words = f"{name} of [search.space]"
    if isinstance(shape, list):
        if not shape or len({repr(_kept(value)) for value in shape}) < len(shape):
            raise InvalidValue(words, allowed="a list of one or more choices, each of them once", given=shape)
        return Choices(name, tuple(shape))
    if not is_range(shape):
        raise InvalidValue(words, allowed="a list of choices or { low, high }, with log or step", given=shape)
    return _range(name, words, shape)


def is_range(shape: object) -> bool:
    """Whether it says where a range begins and ends."""
    return isinstance(shape, Mapping) and {"low", "high"} <= shape.keys() <= RANGE


def _range(name: str, words: str, shape: Any) -> Range:
    low, high = (validate.finite(**{f"{end} of {words}": shape[end]}) for end in ("low", "high"))
    log = validate.true_or_false(**{f"log of {words}": shape.get("log", False)})
    step = None if "step" not in shape else validate.positive(**{f"step of {words}": shape["step"]})
    if not low < high:
        raise InvalidValue(words, allowed="with low < high", given=shape)
    if log and (step is not None or not low > 0):
        raise InvalidValue(words, allowed="without step and with low > 0 where it is logarithmic", given=shape)
    is_whole = step is not None and all(isinstance(shape[key], int) for key in ("low", "high", "step"))
    return Range(name, low, high, log, step, is_whole)


def _kept(value: object) -> Value:
    return value if isinstance(value, bool | int | float | str) else strict_json.dumps(value)
