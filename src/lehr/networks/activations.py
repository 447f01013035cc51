"""Activations: by name, tempered sigmoids, and swapping the activations of a model.

φ(x) = scale · sigmoid(inverse_temperature · x) − offset is the tempered sigmoid of Papernot et al. (2021), "Tempered
Sigmoid Activations for Deep Learning with Differential Privacy"; docs/published_claims.md says what holds of it.

>>> activation_by_name("tempered_sigmoid(mnist)")()
TemperedSigmoid(scale=1.97, inverse_temperature=2.27, offset=1.15)
>>> x = torch.linspace(-3, 3, 7)
>>> torch.equal(TemperedSigmoid()(x), torch.tanh(x))
True
>>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
>>> with_activation(model, TemperedSigmoid)[1]
TemperedSigmoid(scale=2, inverse_temperature=2, offset=1)
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue

# (scale, inverse_temperature, offset): for each data set the mean of the best tenth of those that the paper tried.
BEST_TEMPERED_SIGMOIDS = {
    "mnist": (1.97, 2.27, 1.15),
    "fashion-mnist": (2.27, 2.61, 1.28),
    "cifar-10": (1.58, 3.00, 0.71),
}


class TemperedSigmoid(nn.Module):
    """Maps every number into (−offset, scale − offset), with a slope of at most scale · inverse_temperature / 4.

    With (scale, inverse_temperature, offset) = (2, 2, 1), the default, it is tanh to the bit; with (1, 1, 0) it is the
    sigmoid. At ±inf it is −offset and scale − offset; NaN stays NaN.
    """

    def __init__(self, scale: float = 2.0, inverse_temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = validate.positive(scale=scale)
        self.inverse_temperature = validate.positive(inverse_temperature=inverse_temperature)
        self.offset = validate.at_least(-sys.float_info.max, offset=offset)

    def forward(self, values: Tensor) -> Tensor:
        # The sigmoid written with tanh: where the offset is about half the scale, s · sigmoid(T·x) − o would subtract
        # two numbers that are nearly the same, and a large scale at a small T would leave nothing but their rounding.
        half = self.scale / 2
        return half * torch.tanh(values * (self.inverse_temperature / 2)) + (half - self.offset)

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, inverse_temperature={self.inverse_temperature:g}, offset={self.offset:g}"


Activation: TypeAlias = Callable[[], nn.Module]

ACTIVATIONS: dict[str, Activation] = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "tempered_sigmoid": TemperedSigmoid,
}
_TRIPLET = re.compile(r"\s*tempered_sigmoid\s*\(([^()]*)\)\s*")


def activation_by_name(word: object) -> Activation:
    """Return what makes the activation of that name.

    Tempered sigmoids are "tempered_sigmoid(scale, inverse_temperature, offset)" or "tempered_sigmoid(DATA SET)", with
    the paper's best values for it.
    """
    if isinstance(word, str) and word in ACTIVATIONS:
        return ACTIVATIONS[word]
    if isinstance(word, str) and (found := _TRIPLET.fullmatch(word)):
        try:
            given = BEST_TEMPERED_SIGMOIDS.get(found[1].strip()) or map(float, found[1].split(","))
            scale, inverse_temperature, offset = given
        except ValueError:  # not three of them, or not numbers
            pass
        else:
            TemperedSigmoid(scale, inverse_temperature, offset)  # refuses numbers out of range
            return partial(TemperedSigmoid, scale, inverse_temperature, offset)
    data_sets = " or ".join(f"tempered_sigmoid({name})" for name in BEST_TEMPERED_SIGMOIDS)
    allowed = f"one of {', '.join(ACTIVATIONS)}, tempered_sigmoid(scale, inverse_temperature, offset), {data_sets}"
    raise InvalidValue("activation", allowed=allowed, given=word)


# Elementwise activations only: gates (GLU) and softmaxes combine several numbers.
ACTIVATION_CLASSES: tuple[type[nn.Module], ...] = (
    *(nn.CELU, nn.ELU, nn.GELU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid, nn.Mish),
    *(nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Tanh),
    *(nn.Tanhshrink, TemperedSigmoid),
)


def with_activation(model: nn.Module, activation: Activation | str | Mapping[str, Activation | str]) -> nn.Module:
    """Return a copy of the model with this activation in place of all others.

    ``activation`` makes one when called, as ``nn.Tanh`` does, or is a name ("tempered_sigmoid(mnist)"), or maps the
    paths of some layers to these: ``{"1": "tanh", "4": partial(TemperedSigmoid, 2, 3, 1)}``. ``torch.relu(x)`` in a
    ``forward`` cannot be found. A shared module is replaced by a shared module; training mode is kept.
    """
    copied = nn.ModuleList([copy.deepcopy(model)])  # a parent for a model that is itself an activation
    modules = copied.named_modules(remove_duplicate=False)
    before = {path: module for path, module in modules if isinstance(module, ACTIVATION_CLASSES)}
    if not before:
        allowed = "one with activations that are modules; torch.relu(x) in its forward cannot be replaced"
        raise InvalidValue("model", allowed=allowed, given=type(model).__name__)
    paths = {path[2:]: path for path in before}
    chosen = activation if isinstance(activation, Mapping) else dict.fromkeys(paths, activation)
    made: dict[object, nn.Module] = {}
    for path, given in chosen.items():
        if path not in paths:
            raise InvalidValue("path of an activation", allowed="one of " + ", ".join(paths), given=path)
        if isinstance(given, nn.Module):  # calling it would not make another
            allowed = "a class or a partial of it that makes one, or its name"
            raise InvalidValue("activation", allowed=allowed, given=given)
        replaced = before[paths[path]]
        if (replaced, given) not in made:
            make = given if callable(given) else activation_by_name(given)
            made[replaced, given] = make().train(replaced.training)
        copied.set_submodule(paths[path], made[replaced, given])
    return copied[0]
