"""The scattering transform: fixed wavelets and moduli in front of a small trained network.

Tramèr & Boneh (2021), "Differentially Private Learning Needs Better Features (or Much More Data)", train on it
privately. It has no weights and looks at one image at a time, so it costs no privacy and uses no other data.

>>> features = Scattering(image_side=28)
>>> features(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
>>> [sum(weight.numel() for weight in network.parameters()) for network in (scattering_linear(), scattering_cnn())]
[39700, 89546]
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.activations import Activation

SCALES, ANGLES = 2, 8  # J and L: 1 + J·L + L²·J·(J - 1)/2 = 81 channels for each channel of the image
SHRINKS_BY = 2**SCALES
PADDING = SHRINKS_BY  # pixels on every side
FEATURES_PER_CHANNEL = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2


class Scattering(nn.Module):
    """Scattering coefficients of order 0, 1 and 2 (Oyallon & Mallat, 2015), with two scales and eight angles.

    Images (N, C, side, side) become (N, 81·C, side/4, side/4). Inputs of that shape are taken for features that were
    computed before, and are returned as they are.
    """

    def __init__(self, *, image_side: int, in_channels: int = 1) -> None:
        super().__init__()
        if validate.count(minimum=8, image_side=image_side) % SHRINKS_BY:
            raise InvalidValue("image_side", allowed=f"a multiple of {SHRINKS_BY}", given=image_side)
        self.image_side, self.in_channels = image_side, validate.count(in_channels=in_channels)
        side = image_side // SHRINKS_BY
        self.shape = (FEATURES_PER_CHANNEL * in_channels, side, side)  # of the features

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] == self.shape:
            return images
        if images.shape[1:] != (self.in_channels, self.image_side, self.image_side):
            allowed = f"of shape {(self.in_channels, self.image_side, self.image_side)}"
            raise InvalidValue("images", allowed=allowed, given=tuple(images.shape[1:]))
        return scatter(images)

    def extra_repr(self) -> str:
        return f"image_side={self.image_side}, in_channels={self.in_channels}"


def scatter(images: Tensor) -> Tensor:
    """The features of images (N, C, side, side)."""
    side = images.shape[-1] // SHRINKS_BY
    padded = functional.pad(images.float(), [PADDING] * 4, mode="reflect").flatten(0, 1)
    bank = _bank(padded.shape[-1]).on(images.device)
    spectrum = torch.fft.fft2(padded)[:, None]
    first, second = [], []
    for j, wavelets in enumerate(bank.wavelets[0]):
        moduli = torch.fft.ifft2(_fold(spectrum * wavelets, 2**j)).abs()
        first.append(bank.smooth(moduli, j))
        if j + 1 < SCALES:
            inner = torch.fft.fft2(moduli)[:, :, None]
        for k in range(j + 1, SCALES):
            finer = torch.fft.ifft2(_fold(inner * bank.wavelets[j][k], 2 ** (k - j))).abs()
            second.append(bank.smooth(finer.flatten(1, 2), k))
    features = torch.cat([bank.smooth(padded[:, None], 0), *first, *second], 1)
    return features.reshape(len(images), -1, side, side).to(images.dtype)


class _Bank(NamedTuple):
    """The filters for one side. ``wavelets[r][j]``: spectra of scale j, (angles, side/2^r, side/2^r)."""

    wavelets: list[list[Any]]
    averages: list[Any]  # from a side of side/2^r to the one of the features

    def on(self, device: torch.device) -> _Bank:
        """The filters as tensors. These are not kept: one made under inference or fake mode is of no use outside."""
        return _Bank(
            [[torch.tensor(each, dtype=torch.complex64, device=device) for each in row] for row in self.wavelets],
            [torch.tensor(each, dtype=torch.float32, device=device) for each in self.averages],
        )

    def smooth(self, values: Tensor, resolution: int) -> Tensor:
        average: Tensor = self.averages[resolution]
        return average @ values @ average.T


@cache
def _bank(side: int) -> _Bank:
    """The filters as arrays."""
    spectra = [np.stack([_morlet(side, j, angle) for angle in range(ANGLES)]) for j in range(SCALES)]
    wavelets = [[_crop(each, 2**r) for each in spectra] for r in range(SCALES)]
    return _Bank(wavelets, [_average(side, 2**r) for r in range(SCALES)])


def _morlet(side: int, scale: int, angle: int) -> np.ndarray:
    """The spectrum of a Morlet wavelet, whose mean is zero."""
    frequency = 3 * np.pi / 4 / 2**scale
    theta = (ANGLES // 2 - 1 - angle) * np.pi / ANGLES
    wave, envelope = (_gabor(side, 0.8 * 2**scale, theta, xi) for xi in (frequency, 0.0))
    spectrum: np.ndarray = np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real
    return spectrum


def _gabor(side: int, width: float, theta: float, frequency: float) -> np.ndarray:
    """A plane wave under a Gaussian that is twice as long across its angle, repeated at the borders."""
    slant = 4 / ANGLES
    at = np.arange(-2 * side, 3 * side)
    x, y = at[:, None], at[None, :]
    along, across = x * np.cos(theta) + y * np.sin(theta), -x * np.sin(theta) + y * np.cos(theta)
    values = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2) + 1j * frequency * along)
    periodic: np.ndarray = values.reshape(5, side, 5, side).sum((0, 2)) * slant / (2 * np.pi * width**2)
    return periodic


def _crop(spectrum: np.ndarray, by: int) -> np.ndarray:
    """The spectra of filters (..., side, side) for images of a smaller side: their low frequencies."""
    side = spectrum.shape[-1]
    kept = _low(side, by)
    low: np.ndarray = spectrum[..., kept, :][..., kept]
    return low


def _low(side: int, by: int) -> np.ndarray:
    """Which frequencies images of side/by have."""
    at, half = np.arange(side), side // by // 2
    is_low: np.ndarray = (at < half) | (at >= side - half)
    return is_low


def _fold(spectra: Tensor, by: int) -> Tensor:
    """The spectra of every ``by``-th pixel."""
    if by == 1:
        return spectra
    side = spectra.shape[-1] // by
    return spectra.reshape(*spectra.shape[:-2], by, side, by, side).mean((-4, -2))


def _average(side: int, by: int) -> np.ndarray:
    """A Gaussian mean along one axis of images of side/by, at the places of the features."""
    width = 0.8 * 2 ** (SCALES - 1)
    at = np.arange(-2 * side, 3 * side)
    gaussian = (np.exp(-(at**2) / (2 * width**2)) / np.sqrt(2 * np.pi) / width).reshape(5, side).sum(0)
    frequencies = np.fft.fft(gaussian).real
    small = np.fft.ifft(frequencies[_low(side, by)]).real
    border = PADDING // SHRINKS_BY
    centres = np.arange(border, side // SHRINKS_BY - border) * SHRINKS_BY // by
    average: np.ndarray = small[(centres[:, None] - np.arange(side // by)[None, :]) % (side // by)]
    return average


def _front(image_side: int, in_channels: int, groups: int) -> tuple[Scattering, nn.GroupNorm]:
    scattering = Scattering(image_side=image_side, in_channels=in_channels)
    return scattering, nn.GroupNorm(groups, scattering.shape[0], affine=False)


def scattering_linear(*, image_side: int = 28, in_channels: int = 1, num_classes: int = 10) -> nn.Sequential:
    """Scattering features, normalised record by record, and one linear layer."""
    scattering, norm = _front(image_side, in_channels, 27)
    return nn.Sequential(scattering, norm, nn.Flatten(), nn.Linear(math.prod(scattering.shape), num_classes))


def scattering_cnn(
    *,
    image_side: int = 28,
    in_channels: int = 1,
    num_classes: int = 10,
    width: int = 64,
    activation: Activation = nn.ReLU,
) -> nn.Sequential:
    """Scattering features, normalised record by record, two convolutions and one linear layer."""
    scattering, norm = _front(image_side, in_channels, 27)
    channels, side, _ = scattering.shape
    return nn.Sequential(
        scattering,
        norm,
        nn.Conv2d(channels, width, kernel_size=3, padding=1),
        nn.GroupNorm(8, width),
        activation(),
        nn.MaxPool2d(kernel_size=2),
        nn.Conv2d(width, width, kernel_size=3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(width * (side // 2) ** 2, num_classes),
    )
