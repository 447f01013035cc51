"""The scattering transform: fixed wavelets and moduli in front of a small trained network.

Tramèr & Boneh (2021), "Differentially Private Learning Needs Better Features (or Much More Data)", train on it
privately. It has no trained weights and looks at one image at a time, so it costs no privacy.

``Scattering`` also whitens the features: their means and covariances are those of random images
(``lehr.data.random_images``), never of records. Features that vary alike are learnt at the same pace, so that fewer
noisy steps are needed.

>>> features = Scattering(image_side=28)
>>> features(torch.zeros(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
>>> [sum(weight.numel() for weight in network.parameters()) for network in (scattering_linear(), scattering_cnn())]
[39700, 89290]
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr import validate
from lehr.data.random_images import dead_leaves
from lehr.errors import InvalidValue
from lehr.networks.activations import Activation
from lehr.networks.layers import check_divides

SCALES, ANGLES = 2, 8  # J and L: 1 + J·L + L²·J·(J - 1)/2 = 81 channels for each channel of the image
SHRINKS_BY = 2**SCALES
PADDING = SHRINKS_BY  # pixels on every side
FEATURES_PER_CHANNEL = 1 + SCALES * ANGLES + ANGLES**2 * SCALES * (SCALES - 1) // 2
CPU_CHUNK = 16  # channels of images that are transformed at once: what they need stays in the cache

GROUPS = 8  # of the norms in ``scattering_cnn``
RANDOM_IMAGES, SEED = 1000, 0  # from which means and covariances are taken
SMALLEST_VARIANCE = 0.1  # added to the variances of all directions, whose mean is 1


class Scattering(nn.Module):
    """Whitened scattering coefficients of order 0, 1 and 2 (Oyallon & Mallat, 2015): two scales, eight angles.

    Images (N, C, side, side) become (N, 81·C, side/4, side/4), normalised over the channels at each position. With
    ``pool``, squares of so many positions are averaged. Inputs of that shape are taken for features that were computed
    before, and are returned as they are.
    """

    means: Tensor
    whitening: Tensor

    def __init__(self, *, image_side: int, in_channels: int = 1, pool: int = 1) -> None:
        super().__init__()
        if validate.count(minimum=8, image_side=image_side) % SHRINKS_BY:
            raise InvalidValue("image_side", allowed=f"a multiple of {SHRINKS_BY}", given=image_side)
        self.image_side, self.in_channels, self.pool = image_side, validate.count(in_channels=in_channels), pool
        check_divides("pool", pool, of=image_side // SHRINKS_BY)
        side = image_side // SHRINKS_BY // pool
        self.shape = (FEATURES_PER_CHANNEL * in_channels, side, side)  # of the features
        for name, value in zip(("means", "whitening"), _statistics(image_side, in_channels), strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[1:] == self.shape:
            return images
        if images.shape[1:] != (self.in_channels, self.image_side, self.image_side):
            allowed = f"of shape {(self.in_channels, self.image_side, self.image_side)}"
            raise InvalidValue("images", allowed=allowed, given=tuple(images.shape[1:]))
        with torch.autocast(images.device.type, enabled=False):
            features = scatter(images).movedim(1, -1) - self.means
            features = functional.layer_norm(features @ self.whitening, self.shape[:1]).movedim(-1, 1)
        return functional.avg_pool2d(features, self.pool).to(images.dtype)

    def extra_repr(self) -> str:
        return f"image_side={self.image_side}, in_channels={self.in_channels}, pool={self.pool}"


def scatter(images: Tensor) -> Tensor:
    """The features of images (N, C, side, side), in float32, before they are whitened."""
    side = images.shape[-1] // SHRINKS_BY
    padded = functional.pad(images.float(), [PADDING] * 4, mode="reflect").flatten(0, 1)
    transform = _Transform.of(padded.shape[-1], images.device)
    at_once = CPU_CHUNK if images.device.type == "cpu" else max(1, len(padded))
    parts = [transform.features(part) for part in torch.split(padded, at_once)]
    return torch.cat(parts).reshape(len(images), -1, side, side)


class _Transform(NamedTuple):
    """All that the transform multiplies with, for images of one side.

    Fourier transforms of such small images are fastest as products with matrices. A row of complex numbers is held as
    its real parts, followed by its imaginary ones. Every transform leaves rows and columns exchanged, twice in all.
    """

    forward: Tensor  # (side, 2·side): from real rows
    across: Tensor  # (2·side, 2·side): from complex rows
    backward: Tensor  # (2·side, 2·side)
    backward_half: Tensor  # (side, side): for images of half the side
    wavelets: Tensor  # (scales, angles, side, 2·side): spectra, which are real
    averages: Tensor  # (side / 4 - 2, side)
    averages_half: Tensor

    @classmethod
    def of(cls, side: int, device: torch.device) -> _Transform:
        """As tensors. These are not kept: one made under inference or fake mode is of no use outside."""
        return cls(*(torch.tensor(each, dtype=torch.float32, device=device) for each in _transform(side)))

    def features(self, maps: Tensor) -> Tensor:
        """The features (M, 81, side / 4 - 2, side / 4 - 2) of real maps (M, side, side)."""
        spectrum = self._spectrum(maps)[:, None]
        moduli = self._modulus(spectrum * self.wavelets[0], self.backward)
        coarse = self._modulus(_every_second(spectrum * self.wavelets[1]), self.backward_half)
        inner = self._spectrum(moduli)[:, :, None]
        second = self._modulus(_every_second(inner * self.wavelets[1]), self.backward_half)
        smooth = self.averages @ torch.cat([maps[:, None], moduli], 1) @ self.averages.T
        smooth_half = self.averages_half @ torch.cat([coarse, second.flatten(1, 2)], 1) @ self.averages_half.T
        return torch.cat([smooth, smooth_half], 1)

    def _spectrum(self, maps: Tensor) -> Tensor:
        return _exchanged(maps @ self.forward) @ self.across

    @staticmethod
    def _modulus(spectrum: Tensor, backward: Tensor) -> Tensor:
        real, imaginary = (_exchanged(spectrum @ backward) @ backward).chunk(2, -1)
        return (real.square() + imaginary.square()).sqrt()


def _exchanged(values: Tensor) -> Tensor:
    """Rows and columns of complex matrices exchanged."""
    return torch.cat([part.transpose(-1, -2) for part in values.chunk(2, -1)], -1)


def _every_second(spectra: Tensor) -> Tensor:
    """The spectra of every second pixel: the mean of both halves of each axis, by sums, which are fast on a CPU."""
    upper, lower = spectra.chunk(2, -2)
    first, second, third, fourth = (upper + lower).chunk(4, -1)
    return torch.cat([first + second, third + fourth], -1) / 4


@cache
def _transform(side: int) -> tuple[np.ndarray, ...]:
    def complex_rows(angles: np.ndarray) -> np.ndarray:
        cosines, sines = np.cos(angles), np.sin(angles)
        return np.block([[cosines, sines], [-sines, cosines]])

    angles, half = 2 * np.pi / side * np.outer(np.arange(side), np.arange(side)), side // 2
    across = complex_rows(-angles)
    spectra = np.stack([np.stack([_morlet(side, j, angle) for angle in range(ANGLES)]) for j in range(SCALES)])
    spectra = np.concatenate([spectra.swapaxes(-1, -2)] * 2, -1)
    backward, backward_half = complex_rows(angles) / side, complex_rows(2 * angles[:half, :half]) / half
    return across[:side], across, backward, backward_half, spectra, _average(side, 1), _average(side, 2)


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


def _low(side: int, by: int) -> np.ndarray:
    """Which frequencies images of side/by have."""
    at, half = np.arange(side), side // by // 2
    is_low: np.ndarray = (at < half) | (at >= side - half)
    return is_low


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


@cache
def _statistics(image_side: int, in_channels: int) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        generator = torch.Generator("cpu").manual_seed(SEED)
        return whitening_of(dead_leaves(RANDOM_IMAGES, image_side, in_channels, generator))


def whitening_of(images: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Means of the features of public images, and the matrix that makes them uncorrelated with variance one."""
    standardised = (images - images.mean()) / images.std()  # as records are
    features = scatter(standardised).movedim(1, -1).flatten(0, 2).double().numpy()
    means = features.mean(0)
    covariance = np.cov(features.T)
    spreads = np.sqrt(np.diag(covariance))
    variances, directions = np.linalg.eigh(covariance / spreads[:, None] / spreads)
    whitening = (directions / np.sqrt(np.maximum(variances, 0) + SMALLEST_VARIANCE)) @ directions.T / spreads[:, None]
    return means, whitening


def scattering_linear(
    *, image_side: int = 28, in_channels: int = 1, num_classes: int = 10, pool: int = 1
) -> nn.Sequential:
    """Scattering features and one linear layer."""
    scattering = Scattering(image_side=image_side, in_channels=in_channels, pool=pool)
    return nn.Sequential(scattering, nn.Flatten(), nn.Linear(math.prod(scattering.shape), num_classes))


def scattering_cnn(
    *,
    image_side: int = 28,
    in_channels: int = 1,
    num_classes: int = 10,
    width: int = 64,
    activation: Activation = nn.Mish,
) -> nn.Sequential:
    """Scattering features, two convolutions, each with its activation and a norm, and one linear layer."""
    if validate.count(minimum=2 * GROUPS, width=width) % GROUPS:  # a group of one number would be zero
        raise InvalidValue("width", allowed=f"a multiple of {GROUPS}", given=width)
    scattering = Scattering(image_side=image_side, in_channels=in_channels)
    channels, side, _ = scattering.shape
    return nn.Sequential(
        scattering,
        nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),
        activation(),
        nn.GroupNorm(GROUPS, width, affine=False),
        nn.MaxPool2d(kernel_size=2),
        nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False),
        activation(),
        nn.GroupNorm(GROUPS, width, affine=False),
        nn.Flatten(),
        nn.Linear(width * (side // 2) ** 2, num_classes),
    )
