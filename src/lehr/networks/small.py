"""A small convolutional network for small images of any size, such as the digits that come with scikit-learn.

>>> sum(parameter.numel() for parameter in small_cnn().parameters())
6090
"""

from __future__ import annotations

from torch import nn

from lehr import validate
from lehr.networks.activations import Activation


def small_cnn(
    *, in_channels: int = 1, image_side: int = 8, num_classes: int = 10, activation: Activation = nn.Tanh
) -> nn.Sequential:
    """Two convolutions of 3 × 3, each halving the image, and one linear layer."""
    side = validate.count(minimum=4, image_side=image_side) // 4
    return nn.Sequential(
        nn.Conv2d(in_channels, 16, kernel_size=3, padding=1),
        activation(),
        nn.MaxPool2d(kernel_size=2),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        activation(),
        nn.MaxPool2d(kernel_size=2),
        nn.Flatten(),
        nn.Linear(32 * side * side, num_classes),
    )
