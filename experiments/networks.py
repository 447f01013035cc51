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

from collections import OrderedDict

from torch import nn

from lehr import validate
from lehr.networks import build, freeze, register
from lehr.networks.activations import Activation

__all__ = ["alexnet_like", "build"]

CHANNELS, WIDTHS = 64, (384, 192)


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
    layers are trained; load the convolutions before, ``network.convolutions.load_state_dict(...)``, or they stay
    random features.
    """
    validate.true_or_false(frozen_convolutions=frozen_convolutions)
    side = validate.count(minimum=4, image_side=image_side) // 4

    def norm() -> nn.Module:
        """TensorFlow's: x / (1 + 0.001/9 · Σ x²)^0.75 over four channels on either side."""
        return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)

    convolutions = nn.Sequential(
        nn.Conv2d(in_channels, CHANNELS, kernel_size=5, padding=2),
        activation(),
        nn.MaxPool2d(kernel_size=2),
        norm(),
        nn.Conv2d(CHANNELS, CHANNELS, kernel_size=5, padding=2),
        activation(),
        norm(),
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
