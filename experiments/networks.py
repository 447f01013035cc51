"""The papers' own networks, registered by name: import ``build`` from here.

``alexnet_like`` is the network for CIFAR-10 of ADADP: two convolutions with response norms, then three linear layers.

Xu et al., "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning" (2020), describe a variant
of AlexNet (Krizhevsky et al., 2012): 64 filters of 5 × 5 twice, pools of 2 × 2, "two fully connected layers and one
softmax layer". The numbers that they leave out, the widths 384 and 192 and those of the norm, are taken from the
network of TensorFlow's CIFAR-10 tutorial, which has the same layers. Their convolutions come from CIFAR-100 and stay as
they are.

>>> network = alexnet_like(frozen_convolutions=True)
>>> sum(parameter.numel() for parameter in network.parameters())
1756426
>>> sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
1649098
"""

from __future__ import annotations

import functools
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from lehr import validate
from lehr.networks import build, freeze, register
from lehr.networks.activations import Activation

__all__ = ["ResponseNorm", "alexnet_like", "build"]

CHANNELS = 64
WIDTHS = (384, 192)


@register
def alexnet_like(
    *,
    image_side: int = 32,
    in_channels: int = 3,
    num_classes: int = 10,
    activation: Activation = nn.ReLU,
    frozen_convolutions: bool = False,
) -> nn.Sequential:
    """The network: ``convolutions``, whose weights may come from elsewhere, and ``scores``.

    The second norm stands before its pool and the first one behind it. With ``frozen_convolutions`` only the linear
    layers are trained; load the convolutions before, ``network.convolutions.load_state_dict(...)``, or they stay the
    random features that they begin as.
    """
    validate.true_or_false(frozen_convolutions=frozen_convolutions)
    side = validate.count(minimum=4, image_side=image_side) // 4
    convolutions = nn.Sequential(
        _convolution(in_channels),
        activation(),
        nn.MaxPool2d(kernel_size=2),
        _norm(),
        _convolution(CHANNELS),
        activation(),
        _norm(),
        nn.MaxPool2d(kernel_size=2),
    )
    scores = nn.Sequential(
        nn.Flatten(),
        nn.Linear(CHANNELS * side * side, WIDTHS[0]),
        activation(),
        nn.Linear(WIDTHS[0], WIDTHS[1]),
        activation(),
        nn.Linear(WIDTHS[1], num_classes),
    )
    network = nn.Sequential(OrderedDict(convolutions=convolutions, scores=scores))
    if frozen_convolutions:
        freeze(network, "convolutions")
    return network


def _convolution(in_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, CHANNELS, kernel_size=5, padding=2)


def _norm() -> ResponseNorm:
    return ResponseNorm(reach=4, strength=0.001 / 9, exponent=0.75)


class ResponseNorm(nn.Module):
    """x / (1 + strength · Σ x²)^exponent: the sum is over ``reach`` channels on either side, at one pixel of a record.

    The second axis of what comes in are the channels. Nothing is trained, and no record sees another.
    """

    def __init__(self, *, reach: int, strength: float, exponent: float) -> None:
        super().__init__()
        self.reach = validate.count(minimum=0, reach=reach)
        self.strength = validate.positive(strength=strength)
        self.exponent = validate.positive(exponent=exponent)

    def forward(self, values: Tensor) -> Tensor:
        beyond = [0, 0] * (values.dim() - 2) + [self.reach, self.reach]
        squares = pad(values.square(), beyond)
        num_channels = values.shape[1]
        windows = [squares.narrow(1, first, num_channels) for first in range(2 * self.reach + 1)]
        total = functools.reduce(torch.add, windows)
        return values * (1 + self.strength * total).pow(-self.exponent)

    def extra_repr(self) -> str:
        return f"reach={self.reach}, strength={self.strength:g}, exponent={self.exponent:g}"
