"""The family of bounded activations of Papernot et al. (2021), "Tempered Sigmoid Activations for Deep Learning with
Differential Privacy".

φ(x) = scale · sigmoid(inverse_temperature · x) − offset. What it promises, and what of the paper's theory holds, is in
docs/tempered_sigmoids.md.

>>> import torch
>>> TemperedSigmoid(*BEST["mnist"])
TemperedSigmoid(scale=1.97, inverse_temperature=2.27, offset=1.15)
>>> x = torch.linspace(-3, 3, 7)
>>> torch.equal(TemperedSigmoid()(x), torch.tanh(x))
True
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from lehr import validate

# (scale, inverse_temperature, offset): for each data set the mean of the best tenth of those that the paper tried.
BEST: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {"mnist": (1.97, 2.27, 1.15), "fashion-mnist": (2.27, 2.61, 1.28), "cifar-10": (1.58, 3.00, 0.71)}
)


class TemperedSigmoid(nn.Module):
    """Maps every number into (−offset, scale − offset), with a slope of at most scale · inverse_temperature / 4.

    | scale, inverse temperature, offset | is |
    |---|---|
    | 2, 2, 1 | tanh, to the bit; the default |
    | 1, 1, 0 | the sigmoid |
    | 4/T, T, 2/T, as T goes to 0 | x itself |
    | s, T, o, as T goes to infinity | a step from −o to s − o, at zero |
    | anything, at x = ±inf | −offset and scale − offset; NaN stays NaN |
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
