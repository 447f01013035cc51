"""Small networks of the private training papers.

Papernot et al. (2021), "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", describe
``paper_cnn`` and ``cifar_cnn``. ``pooled_cnn`` is that of Tramèr & Boneh (2021), "Differentially Private Learning Needs
Better Features (or Much More Data)", which SA-DPSGD uses. ``small_cnn`` is for small images of any size.

>>> networks = paper_cnn(), cifar_cnn(), pooled_cnn(), small_cnn(), projected_mlp()
>>> [sum(parameter.numel() for parameter in network.parameters()) for network in networks]
[26010, 605226, 550570, 6090, 71010]
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from torch import nn

from lehr import validate
from lehr.networks.activations import Activation
from lehr.networks.layers import Projection


def paper_cnn(*, num_classes: int = 10, activation: Activation = nn.Tanh) -> nn.Sequential:
    """The network for MNIST and FashionMNIST: images of one channel, 28 × 28.

    The pools move by one pixel, so that they barely shrink the map: 28 → 13 → 12 → 5 → 4.
    """
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=8, stride=2, padding=2),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        activation(),
        nn.MaxPool2d(kernel_size=2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        activation(),
        nn.Linear(32, num_classes),
    )


def cifar_cnn(*, num_classes: int = 10, activation: Activation = nn.Tanh) -> nn.Sequential:
    """The network for CIFAR-10: images of three channels, convolutions only, and a mean over space at the end."""
    return nn.Sequential(
        *_three_pairs(activation, nn.AvgPool2d),
        _convolution(128, 256),
        activation(),
        _convolution(256, num_classes),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def pooled_cnn(*, num_classes: int = 10, activation: Activation = nn.Tanh) -> nn.Sequential:
    """Another network for CIFAR-10: six convolutions, a maximum pool after each pair, and a hidden layer."""
    return nn.Sequential(
        *_three_pairs(activation, nn.MaxPool2d),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        activation(),
        nn.Linear(128, num_classes),
    )


def _three_pairs(activation: Activation, pool: type[nn.AvgPool2d | nn.MaxPool2d]) -> Iterator[nn.Module]:
    for before, after in ((3, 32), (32, 64), (64, 128)):
        yield from (_convolution(before, after), activation(), _convolution(after, after), activation())
        yield pool(kernel_size=2)


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)


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


def mlp(
    *, inputs: int = 64, hidden: int = 64, num_classes: int = 10, activation: Activation = nn.Tanh
) -> nn.Sequential:
    """A linear layer for rows of numbers, with one hidden layer in front unless ``hidden`` is 0."""
    if validate.count(minimum=0, hidden=hidden) == 0:
        return nn.Sequential(nn.Linear(inputs, num_classes))
    return nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, num_classes))


def projected_mlp(
    *,
    inputs: int = 28 * 28,
    dimensions: int = 60,
    hidden: int = 1000,
    num_classes: int = 10,
    activation: Activation = nn.ReLU,
) -> nn.Sequential:
    """A projection onto principal components and one wide layer, for private PCA.

    Abadi et al. (2016), and Xu et al. (2020) after them, use it on MNIST. Until ``projection.components`` is filled,
    it sees nothing of its records.
    """
    return nn.Sequential(
        OrderedDict(
            projection=Projection(inputs, dimensions),
            hidden=nn.Linear(dimensions, validate.count(hidden=hidden)),
            activation=activation(),
            scores=nn.Linear(hidden, num_classes),
        )
    )
