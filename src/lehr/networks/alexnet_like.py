"""The network for CIFAR-10 of ADADP: two convolutions with local response norms, then three linear layers.

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

from collections import OrderedDict

from torch import nn

from lehr import validate
from lehr.networks.activations import Activation
from lehr.networks.freezing import freeze
from lehr.networks.response_norm import ResponseNorm

CHANNELS = 64
WIDTHS = (384, 192)


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
