"""Images from random processes. They show nothing real, so whatever is learnt from them costs no privacy.

- ``dead_leaves``: discs, rectangles and triangles that cover one another (Lee, Mumford & Huang 2001)
- ``oriented``: a generator shaped like StyleGAN2 that is never trained, with edge and line filters, as Baradad et al.
  (2021), "Learning to See by Looking at Noise", use it
- ``pink_noise``: Gaussian noise whose spectrum falls as a power of the frequency

>>> images = draw("dead-leaves", 2, side=16, channels=3, generator=torch.Generator().manual_seed(0))
>>> images.shape, bool(((images >= 0) & (images <= 1)).all())
(torch.Size([2, 3, 16, 16]), True)

Values are in [0, 1]. The same generator state gives the same images, up to rounding on another device. Axes: N images,
C channels, F features inside the generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from lehr import validate
from lehr.errors import InvalidValue

SHAPES = 120  # in an image of dead leaves: nearly all pixels are then covered
RADII = (0.06, 0.6)  # of these shapes, over the side of the image
FEATURES = 64  # of ``oriented`` at every resolution
FIRST_SIDE = 4
# Mean and standard deviation of a colour over an image, and how much they vary from image to image.
COLOUR_MEAN, COLOUR_STD = (0.45, 0.15), (0.215, 0.065)


def draw(kind: str, count: int, *, side: int, channels: int, generator: torch.Generator) -> Tensor:
    """Return images of a kind, ``images_NCHW``, on the generator's device."""
    make = KINDS[validate.one_of(KINDS, kind=kind)]
    sizes = validate.count(minimum=0, count=count), validate.count(side=side), validate.count(channels=channels)
    return make(*sizes, generator)


def dead_leaves(count: int, side: int, channels: int, generator: torch.Generator) -> Tensor:
    """Shapes of uniform colours. The density of their radii falls with the third power, as in natural images."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device)

    images = torch.zeros(count, channels, side, side, device=generator.device)
    is_free = torch.ones(count, side, side, dtype=torch.bool, device=generator.device)
    at = (torch.arange(side, device=generator.device) + 0.5) / side
    smallest, largest = (radius**-2 for radius in RADII)
    for _ in range(SHAPES):  # from front to back
        radius, x, y, angle, aspect, kind = uniform(6, count, 1, 1)
        radius = (smallest + (largest - smallest) * radius).rsqrt()
        dx, dy, angle = at - (1.2 * x - 0.1), at[:, None] - (1.2 * y - 0.1), 2 * math.pi * angle
        along, across = dx * angle.cos() + dy * angle.sin(), dy * angle.cos() - dx * angle.sin()
        is_disc = along.square() + across.square() < radius.square()
        is_rectangle = (along.abs() < radius) & (across.abs() < radius * (0.5 + 1.5 * aspect))
        is_triangle = (across > -radius / 2) & (across < radius - math.sqrt(3) * along.abs())
        is_inside = torch.where(kind < 1 / 3, is_disc, torch.where(kind < 2 / 3, is_rectangle, is_triangle)) & is_free
        images = torch.where(is_inside[:, None], uniform(count, channels, 1, 1), images)
        is_free = is_free & ~is_inside
    return images


def oriented(count: int, side: int, channels: int, generator: torch.Generator) -> Tensor:
    """Each layer convolves every feature with one small filter, adds them up, and bends the sum in many ways.

    That is what StyleGAN2's modulated convolution comes to if the weights of a layer are one filter for each of its
    inputs times one random number for each of its outputs.
    """
    doublings = math.log2(side / FIRST_SIDE)
    if side < FIRST_SIDE or not doublings.is_integer():
        raise InvalidValue("side", allowed=f"{FIRST_SIDE} times a power of two", given=side)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=generator.device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=generator.device)

    noise = pink_maps(count, side, generator)[:, None]
    noise = noise * functional.interpolate(_laplace(uniform(count, 1, 4, 4)), side, mode="bicubic", align_corners=False)
    noise = noise / noise.std((2, 3), keepdim=True).clamp_min(1e-6)

    def layer(features: Tensor) -> Tensor:
        filters = _filters().to(generator.device)
        few = 5 + (uniform(count, 1) * (len(filters) - 4)).long()  # the kinds of filters in this layer
        order = uniform(count, len(filters)).argsort(1)
        chosen = filters[order.gather(1, (uniform(count, FEATURES) * few).long())] * (
            1 + 0.6 * normal(count, FEATURES, 1, 1)
        )
        chosen = chosen / chosen.square().sum((1, 2, 3), keepdim=True).sqrt()
        padded = functional.pad(features, [1] * 4, mode="reflect")
        summed = functional.conv2d(padded.reshape(1, -1, *padded.shape[2:]), chosen, groups=count).transpose(0, 1)
        signs = torch.where(uniform(count, FEATURES, 1, 1) < 0.5, -1.0, 1.0)
        biases = 0.4 * uniform(count, FEATURES, 1, 1) - 0.2
        added = functional.adaptive_avg_pool2d(noise, features.shape[-1]) * 0.3 * uniform(count, 1, 1, 1)
        return math.sqrt(2) * functional.relu(signs * summed + biases + added)

    features = layer(normal(count, FEATURES, FIRST_SIDE, FIRST_SIDE))
    images = _to_colours(features, normal(count, channels, FEATURES), normal(count, 1, FEATURES))
    for _ in range(int(doublings)):
        features = layer(layer(_doubled(features)))
        colours = _to_colours(features, normal(count, channels, FEATURES), normal(count, 1, FEATURES))
        images = _doubled(images) + colours
    return _with_statistics(images, normal(2, count, channels, 1, 1))


def pink_noise(count: int, side: int, channels: int, generator: torch.Generator) -> Tensor:
    """Noise whose amplitudes fall with a power of the frequency between 0.5 and 1.5, drawn for each image."""
    maps = pink_maps(count * channels, side, generator).reshape(count, channels, side, side)
    return _with_statistics(maps, torch.randn(2, count, channels, 1, 1, generator=generator, device=generator.device))


KINDS: dict[str, Callable[[int, int, int, torch.Generator], Tensor]] = {
    "dead-leaves": dead_leaves,
    "oriented": oriented,
    "pink-noise": pink_noise,
}


def pink_maps(count: int, side: int, generator: torch.Generator) -> Tensor:
    """Return ``maps_NHW`` of pink noise with mean zero."""
    device = generator.device
    powers = 0.5 + torch.rand(count, 1, 1, generator=generator, device=device)
    frequencies = torch.fft.fftfreq(side, device=device)
    radii = torch.hypot(frequencies[:, None], frequencies)
    radii[0, 0] = math.inf  # no mean
    white = torch.randn(count, side, side, generator=generator, device=device)
    maps: Tensor = torch.fft.ifft2(torch.fft.fft2(white) * radii**-powers).real
    return maps


@cache
def _filters() -> Tensor:
    """Edges and lines in eight directions, four filters around a centre, and the negatives of all."""
    at = torch.arange(3.0) - 1
    found = []
    for step in range(8):
        angle = math.pi * step / 8
        distance = at[None] * math.cos(angle) + at[:, None] * math.sin(angle)
        edge, line = distance.clamp(-1, 1), 1 - 2 * (1 - distance.abs()).clamp_min(0)
        found += [edge - edge.mean(), line - line.mean()]
    centre = torch.zeros(3, 3)
    centre[1, 1] = 1
    cross = torch.tensor([[0.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]])
    found += [centre, 2 * centre - 1, cross, 2 * cross - 1]
    return torch.stack([*found, *(-each for each in found)])


def _laplace(uniform: Tensor) -> Tensor:
    centred = uniform - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs().clamp_max(0.4999999))


def _doubled(values: Tensor) -> Tensor:
    return functional.interpolate(values, scale_factor=2, mode="bilinear", align_corners=False)


def _to_colours(features: Tensor, weights_NCF: Tensor, styles_N1F: Tensor) -> Tensor:
    mixed = weights_NCF * (1 + 0.6 * styles_N1F) / math.sqrt(FEATURES)
    return torch.einsum("ncf,nfhw->nchw", mixed, features)


def _with_statistics(images: Tensor, drawn: Tensor) -> Tensor:
    """Give each colour of each image the mean and the spread that were drawn for it."""
    variance, mean = torch.var_mean(images, dim=(2, 3), keepdim=True)
    means, spreads = COLOUR_MEAN[0] + COLOUR_MEAN[1] * drawn[0], (COLOUR_STD[0] + COLOUR_STD[1] * drawn[1]).abs()
    return ((images - mean) * variance.clamp_min(1e-12).rsqrt() * spreads + means).clamp(0, 1)
