"""The small convolutional networks of the private training papers.

Papernot et al. (2021), "Tempered Sigmoid Activations for Deep Learning with Differential Privacy", describe the first
two. The third is that of Tramèr & Boneh (2021), "Differentially Private Learning Needs Better Features (or Much More
Data)", whose settings SA-DPSGD has; on CIFAR-10 its accuracies are out of reach with the second.

>>> sum(parameter.numel() for parameter in paper_cnn().parameters())
26010
>>> sum(parameter.numel() for parameter in cifar_cnn().parameters())
605226
>>> sum(parameter.numel() for parameter in pooled_cnn().parameters())
550570
"""

from __future__ import annotations

from torch import nn

from lehr.networks.activations import Activation


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
        *_pair(3, 32, activation),
        nn.AvgPool2d(kernel_size=2),
        *_pair(32, 64, activation),
        nn.AvgPool2d(kernel_size=2),
        *_pair(64, 128, activation),
        nn.AvgPool2d(kernel_size=2),
        _convolution(128, 256),
        activation(),
        _convolution(256, num_classes),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def pooled_cnn(*, num_classes: int = 10, activation: Activation = nn.Tanh) -> nn.Sequential:
    """Another network for CIFAR-10: six convolutions, a maximum over space behind each pair, and a hidden layer."""
    return nn.Sequential(
        *_pair(3, 32, activation),
        nn.MaxPool2d(kernel_size=2),
        *_pair(32, 64, activation),
        nn.MaxPool2d(kernel_size=2),
        *_pair(64, 128, activation),
        nn.MaxPool2d(kernel_size=2),
        nn.Flatten(),
        nn.Linear(128 * 4 * 4, 128),
        activation(),
        nn.Linear(128, num_classes),
    )


def _pair(in_channels: int, out_channels: int, activation: Activation) -> list[nn.Module]:
    return [
        _convolution(in_channels, out_channels),
        activation(),
        _convolution(out_channels, out_channels),
        activation(),
    ]


def _convolution(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
