"""Activations by words that a configuration and a command can hold.

>>> activation_named("tempered_sigmoid(1.58, 3, 0.71)")()
TemperedSigmoid(scale=1.58, inverse_temperature=3, offset=0.71)
>>> activation_named("tempered_sigmoid(mnist)")()
TemperedSigmoid(scale=1.97, inverse_temperature=2.27, offset=1.15)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.tempered_sigmoid import BEST, TemperedSigmoid

Activation: TypeAlias = Callable[[], nn.Module]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "elu": nn.ELU,
        "gelu": nn.GELU,
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "silu": nn.SiLU,
        "tanh": nn.Tanh,
        "tempered_sigmoid": TemperedSigmoid,
    }
)
_TRIPLET = re.compile(r"\s*tempered_sigmoid\s*\(([^()]*)\)\s*")


def activation_named(word: object) -> Activation:
    """What makes the activation of that name.

    A tempered sigmoid has its scale, its inverse temperature and its offset in brackets behind it, or the data set
    whose best ones it shall have.
    """
    if isinstance(word, str) and word in ACTIVATIONS:
        return ACTIVATIONS[word]
    found = _TRIPLET.fullmatch(word) if isinstance(word, str) else None
    triplet = None if found is None else _triplet(found[1])
    if triplet is None:
        data_sets = " or ".join(f"tempered_sigmoid({name})" for name in BEST)
        allowed = f"one of {', '.join(ACTIVATIONS)}, tempered_sigmoid(scale, inverse_temperature, offset), {data_sets}"
        raise InvalidValue("activation", allowed=allowed, given=word)
    TemperedSigmoid(*triplet)  # numbers that are out of range are refused here, and not by the network's first layer
    return partial(TemperedSigmoid, *triplet)


def _triplet(text: str) -> tuple[float, float, float] | None:
    if text.strip() in BEST:
        return BEST[text.strip()]
    try:
        scale, inverse_temperature, offset = (float(part) for part in text.split(","))
    except ValueError:  # not three of them, or not numbers
        return None
    return scale, inverse_temperature, offset
