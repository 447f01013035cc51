"""Augmentation: views of a record, whose gradients are averaged before they are clipped.

>>> images_BCHW = torch.rand(2, 3, 32, 32)
>>> augmentation_by_name("flip_crop")(images_BCHW, views=4, generator=torch.Generator().manual_seed(0)).shape
torch.Size([2, 4, 3, 32, 32])

- ``none``: every view is the image itself
- ``flip_crop``: shifted by up to an eighth of the side, and mirrored; customary for CIFAR-10
- ``rrc``: a random resized crop, mirrored; "RRC" of TAN (Sander et al. 2023)
- ``ours``: shifted by up to 20 of 224 pixels, mirrored, colours jittered; "Ours" of TAN
- ``simclr``: the augmentation of SimCLR (Chen et al. 2020)

In this file: random draws, the operations, ``Augmentation`` and the families by name, test-time augmentation. Every
draw has one number per view and depends on the shape of the batch alone: no record changes the draw for another.
Axes: B records, K views of each, M = B K views, C channels, H rows, W columns, L taps of a filter.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json


def draw_uniforms(low: float, high: float, *, like_M: Tensor, generator: torch.Generator) -> Tensor:
    """Return one uniform number per view, in the images' dtype and shaped to be multiplied with them."""
    drawn_M = torch.rand(len(like_M), generator=generator, device=generator.device).to(like_M)
    return (low + (high - low) * drawn_M).view(-1, *[1] * (like_M.dim() - 1))


def draw_indices(count: int, *, like_M: Tensor, generator: torch.Generator) -> Tensor:
    """Return one integer in [0, count) per view."""
    drawn_M = torch.randint(count, (len(like_M),), generator=generator, device=generator.device)
    return drawn_M.to(like_M.device)


def sometimes(changed_M: Tensor, otherwise_M: Tensor, *, probability: float, generator: torch.Generator) -> Tensor:
    """Return each view changed with this probability, unchanged otherwise."""
    is_changed = draw_uniforms(0.0, 1.0, like_M=otherwise_M, generator=generator) < probability
    return torch.where(is_changed, changed_M, otherwise_M)


def check_range(**named: object) -> tuple[float, float]:
    """Return a pair (low, high) of positive numbers, or raise ``InvalidValue``."""
    ((name, value),) = named.items()
    ends = tuple(validate.positive(**{name: end}) for end in value) if isinstance(value, list | tuple) else ()
    if len(ends) != 2 or not ends[0] <= ends[1]:
        raise InvalidValue(name, allowed="a pair of rising numbers", given=value)
    return ends


@dataclass(frozen=True)
class HorizontalFlip:
    """Mirrors each view with probability 1/2. Not for digits or letters."""

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        return sometimes(images_MCHW.flip(-1), images_MCHW, probability=0.5, generator=generator)


_MODES = {"reflect": "reflect", "zero": "constant"}


@dataclass(frozen=True, kw_only=True)
class PadAndCrop:
    """Pads the image and crops a window of the original size at a uniform position.

    The padding is ``padding_fraction`` of the side, rounded to pixels: 1/8 is the customary 4 pixels of 32. ``mode`` is
    "reflect" or "zero".
    """

    padding_fraction: float = 1 / 8
    mode: str = "reflect"

    def __post_init__(self) -> None:
        validate.one_of(_MODES, mode=self.mode)
        if not 0 <= validate.non_negative(padding_fraction=self.padding_fraction) <= 0.5:
            raise InvalidValue("padding_fraction", allowed="a number in [0, 0.5]", given=self.padding_fraction)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        height, width = images_MCHW.shape[-2:]
        rows, columns = round(self.padding_fraction * height), round(self.padding_fraction * width)
        tops_M = draw_indices(2 * rows + 1, like_M=images_MCHW, generator=generator)
        lefts_M = draw_indices(2 * columns + 1, like_M=images_MCHW, generator=generator)
        padded = functional.pad(images_MCHW, (columns, columns, rows, rows), mode=_MODES[self.mode])
        # All windows as a view without copies; one is taken for each image.
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(len(padded), device=padded.device), :, tops_M, lefts_M]


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """Crops a part of the image and scales it to full size by bilinear interpolation.

    The share of the area is uniform in ``area``; width over height is log-uniform in ``aspect_ratio``. Sides longer
    than the image's are cut to it.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect_ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", check_range(area=self.area))
        object.__setattr__(self, "aspect_ratio", check_range(aspect_ratio=self.aspect_ratio))
        if not self.area[1] <= 1:
            raise InvalidValue("area", allowed="shares of the image, at most 1", given=self.area)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        def draw(low: float, high: float) -> Tensor:
            return draw_uniforms(low, high, like_M=images_MCHW, generator=generator).flatten()

        height, width = images_MCHW.shape[-2:]
        area_M, ratio_M = draw(*self.area), draw(*map(math.log, self.aspect_ratio)).exp()
        shares_M = ratio_M * height / width  # the ratio is one of pixels, and the image need not be square
        tall_M, wide_M = (area_M / shares_M).sqrt().clamp(max=1), (area_M * shares_M).sqrt().clamp(max=1)
        # The image spans -1 to 1 on both axes.
        row_M, column_M, zero_M = (
            draw(-1.0, 1.0) * (1 - tall_M),
            draw(-1.0, 1.0) * (1 - wide_M),
            torch.zeros_like(area_M),
        )
        maps_M23 = torch.stack((wide_M, zero_M, column_M, zero_M, tall_M, row_M), dim=1).view(-1, 2, 3)
        grid_MHW2 = functional.affine_grid(maps_M23, list(images_MCHW.shape), align_corners=False)
        cropped = functional.grid_sample(images_MCHW, grid_MHW2, padding_mode="border", align_corners=False)
        return cropped.clamp_(0, 1)


# How bright the eye finds red, green and blue (Recommendation ITU-R BT.601).
_BRIGHTNESS = (0.299, 0.587, 0.114)
_SMALLEST_SPREAD = 1e-30


@dataclass(frozen=True, kw_only=True)
class ColourJitter:
    """Jitters brightness, contrast, saturation and hue, in this order, with ``probability`` per view.

    Each of the first three is multiplied by a factor uniform in [max(0, 1 - strength), 1 + strength]; the hue is
    rotated by up to ``hue`` of the circle. Images without three channels have no saturation and no hue.
    """

    brightness: float = 0.8
    contrast: float = 0.8
    saturation: float = 0.8
    hue: float = 0.2
    probability: float = 0.8

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            validate.non_negative(**{name: getattr(self, name)})
        validate.probability(probability=self.probability)
        if not validate.non_negative(hue=self.hue) <= 0.5:
            raise InvalidValue("hue", allowed="a number in [0, 0.5]", given=self.hue)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        def factor(strength: float) -> Tensor:
            return draw_uniforms(max(0.0, 1 - strength), 1 + strength, like_M=images_MCHW, generator=generator)

        moved = (images_MCHW * factor(self.brightness)).clamp_(0, 1)
        moved = _scale_from(_luminance(moved).mean(dim=(1, 2, 3), keepdim=True), moved, factor(self.contrast))
        saturation = factor(self.saturation)
        turn = draw_uniforms(-self.hue, self.hue, like_M=images_MCHW, generator=generator)
        if _has_colour(images_MCHW):
            moved = _rotate_hue(_scale_from(_luminance(moved), moved, saturation), turn)
        return sometimes(moved, images_MCHW, probability=self.probability, generator=generator)


@dataclass(frozen=True, kw_only=True)
class Grayscale:
    """Removes the colour of a view with ``probability``."""

    probability: float = 0.2

    def __post_init__(self) -> None:
        validate.probability(probability=self.probability)

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        grey = _luminance(images_MCHW).expand_as(images_MCHW) if _has_colour(images_MCHW) else images_MCHW
        return sometimes(grey, images_MCHW, probability=self.probability, generator=generator)


def _has_colour(images_MCHW: Tensor) -> bool:
    return images_MCHW.shape[1] == len(_BRIGHTNESS)


def _luminance(images_MCHW: Tensor) -> Tensor:
    """Return the luminance in one channel; the mean of the channels where there are not three."""
    if not _has_colour(images_MCHW):
        return images_MCHW.mean(dim=1, keepdim=True)
    red, green, blue = (images_MCHW[:, channel : channel + 1] for channel in range(3))
    return _BRIGHTNESS[0] * red + _BRIGHTNESS[1] * green + _BRIGHTNESS[2] * blue


def _scale_from(base: Tensor, images_MCHW: Tensor, factor: Tensor) -> Tensor:
    """Scale the distance of the images from ``base``, clipped to [0, 1]."""
    return torch.lerp(base, images_MCHW, factor).clamp_(0, 1)


def _rotate_hue(images_MCHW: Tensor, turn: Tensor) -> Tensor:
    """Rotate the hue by a share of the circle; the largest and the smallest channel value stay."""
    red, green, blue = images_MCHW.unbind(1)
    most, least = images_MCHW.amax(1), images_MCHW.amin(1)
    spread = most - least
    # Without spread all differences are zero, and so is their quotient by anything.
    per_spread = spread.clamp_min(_SMALLEST_SPREAD).reciprocal_()
    between = torch.where(most == green, (blue - red).mul_(per_spread).add_(2), (red - green).mul_(per_spread).add_(4))
    sixths = torch.where(most == red, (green - blue).mul_(per_spread), between).add_(6 * turn[:, 0])
    turned = torch.empty_like(images_MCHW)
    # As the hue rotates, each channel falls from the largest value to the smallest and back, each at its own phase.
    for channel, start in zip(turned.unbind(1), (5, 3, 1), strict=True):
        fall = (sixths + start).remainder_(6).sub_(2).abs_().neg_().add_(2).clamp_(0, 1)
        torch.addcmul(most, spread, fall, value=-1, out=channel)
    return turned.clamp_(0, 1)


@dataclass(frozen=True, kw_only=True)
class GaussianBlur:
    """Blurs a view with ``probability`` by a Gaussian whose width in pixels is uniform in ``widths``.

    The filter has about a tenth of the side's pixels, an odd number and at least 3; edges are mirrored.
    """

    widths: tuple[float, float] = (0.1, 2.0)
    probability: float = 0.5

    def __post_init__(self) -> None:
        validate.probability(probability=self.probability)
        object.__setattr__(self, "widths", check_range(widths=self.widths))

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        width_M = draw_uniforms(*self.widths, like_M=images_MCHW, generator=generator)[:, 0, 0]
        blurred = _blur_along(3, _blur_along(2, images_MCHW, width_M), width_M).clamp_(0, 1)
        return sometimes(blurred, images_MCHW, probability=self.probability, generator=generator)


def _blur_along(axis: int, images_MCHW: Tensor, width_M: Tensor) -> Tensor:
    side = images_MCHW.shape[axis]
    reach = max(1, round(side / 20))
    padding = (reach, reach, 0, 0) if axis == 3 else (0, 0, reach, reach)
    padded = functional.pad(images_MCHW, padding, mode="reflect")
    distances_L = torch.arange(-reach, reach + 1, device=width_M.device, dtype=width_M.dtype)
    weights_ML = torch.softmax(-((distances_L / width_M) ** 2) / 2, dim=1)
    total = torch.zeros_like(images_MCHW)
    for tap in range(2 * reach + 1):
        total.addcmul_(padded.narrow(axis, tap, side), weights_ML[:, tap, None, None, None])
    return total


class Operation(Protocol):
    """A frozen dataclass that changes every view, with draws that do not depend on the images."""

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        """Return the changed views, in the same shape, within [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A sequence of operations, drawn anew for each view.

    A view depends on its own record and on what was drawn for its index in the batch.
    """

    name: str
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        validate.text(name=self.name)
        object.__setattr__(self, "operations", tuple(self.operations))

    def __call__(self, images_BCHW: Tensor, *, views: int, generator: torch.Generator) -> Tensor:
        """Return ``views_BKCHW``: ``views`` views of each image. Images are floating point numbers in [0, 1]."""
        validate.count(views=views)
        if images_BCHW.dim() != 4 or not images_BCHW.is_floating_point():
            given = f"{tuple(images_BCHW.shape)} of {images_BCHW.dtype}"
            raise InvalidValue("images", allowed="floating point numbers of shape (B, C, H, W)", given=given)
        shape = (len(images_BCHW), views, *images_BCHW.shape[1:])
        views_MCHW = images_BCHW.unsqueeze(1).expand(shape).reshape(-1, *images_BCHW.shape[1:])
        for operation in self.operations if len(images_BCHW) else ():
            views_MCHW = operation(views_MCHW, generator)
        return views_MCHW.reshape(shape)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        listed = []
        for operation in self.operations:
            kind = type(operation)
            if kind not in _OPERATIONS.values():
                allowed = f"one of {', '.join(_OPERATIONS)}, to be written down"
                raise InvalidValue("operation", allowed=allowed, given=operation)
            values = {
                name: list(value) if isinstance(value, tuple) else value for name, value in vars(operation).items()
            }
            listed.append({"kind": kind.__name__, **values})
        return {"name": self.name, "operations": listed}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """Return the augmentation of a JSON form; unknown operations, wrong fields and bad values raise."""
        given: dict[str, Any] = strict_json.fields("augmentation", shape, ("name", "operations"))
        operations = strict_json.list_of("operations", given["operations"], _operation_from_json)
        return cls(name=given["name"], operations=operations)


_OPERATIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (PadAndCrop, RandomResizedCrop, HorizontalFlip, ColourJitter, Grayscale, GaussianBlur)
}
_FAMILIES = {
    family.name: family
    for family in (
        Augmentation(name="none", operations=()),
        Augmentation(name="flip_crop", operations=(PadAndCrop(padding_fraction=4 / 32), HorizontalFlip())),
        Augmentation(name="rrc", operations=(RandomResizedCrop(), HorizontalFlip())),
        Augmentation(
            name="ours",
            operations=(PadAndCrop(padding_fraction=20 / 224), HorizontalFlip(), ColourJitter(probability=0.3)),
        ),
        Augmentation(
            name="simclr",
            operations=(RandomResizedCrop(), HorizontalFlip(), ColourJitter(), Grayscale(), GaussianBlur()),
        ),
    )
}
FAMILIES = tuple(_FAMILIES)


def augmentation_by_name(name: str) -> Augmentation:
    """Return the family of this name."""
    return _FAMILIES[validate.one_of(_FAMILIES, augmentation=name)]


def _operation_from_json(shape: object) -> Operation:
    fields = dict(strict_json.check_object("operation", shape))
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _OPERATIONS:
        allowed = "an object whose kind is one of " + ", ".join(_OPERATIONS)
        raise InvalidValue("operation", allowed=allowed, given=shape)
    expected = tuple(field.name for field in dataclasses.fields(_OPERATIONS[kind]))
    operation: Operation = _OPERATIONS[kind](**strict_json.fields(f"operation {kind}", fields, expected))
    return operation


@dataclass(frozen=True, kw_only=True)
class AugmentedPrediction:
    """Test-time augmentation: predict the class that most of ``votes`` augmented views of a record get.

    As Sander et al. (2023, "TAN Without a Burn", section 4.2) do. A released model is evaluated, so nothing is private.
    """

    augmentation: Augmentation
    votes: int

    def __post_init__(self) -> None:
        validate.count(votes=self.votes)

    @property
    def is_identity(self) -> bool:
        """Whether all views are the record itself, so that one prediction is enough."""
        return not self.augmentation.operations

    def views(self, images_BCHW: Tensor) -> Tensor:
        """Return the views of each image, ``views_BKCHW``. Images are floating point numbers in [0, 1].

        The draws depend on the image's own values, so an image has the same views in every call and every batch.
        """
        views_BKCHW = [
            self.augmentation(image[None], views=self.votes, generator=_generator_of(image)) for image in images_BCHW
        ]
        return torch.cat(views_BKCHW) if views_BKCHW else images_BCHW.new_empty(0, self.votes, *images_BCHW.shape[1:])


class VoteResult(NamedTuple):
    """The class of each record, ``classes_B``, and the log of the mean probability of every class."""

    classes: Tensor
    scores: Tensor


def majority_vote(scores_BKC: Tensor) -> VoteResult:
    """Return the class that most views predict; among equals, the one of the largest mean probability.

    >>> majority_vote(torch.tensor([[[9.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])).classes
    tensor([1])
    >>> majority_vote(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]])).classes
    tensor([0])
    """
    num_votes, num_classes = scores_BKC.shape[1:]
    if num_votes == 1:
        return VoteResult(scores_BKC[:, 0].argmax(dim=1), scores_BKC[:, 0])
    mean_BC = scores_BKC.log_softmax(dim=2).logsumexp(dim=1) - math.log(num_votes)
    count_BC = functional.one_hot(scores_BKC.argmax(dim=2), num_classes).sum(dim=1)
    has_fewer_BC = count_BC < count_BC.amax(dim=1, keepdim=True)
    return VoteResult(mean_BC.masked_fill(has_fewer_BC, -math.inf).argmax(dim=1), mean_BC)


def _generator_of(image: Tensor) -> torch.Generator:
    """Return a generator seeded by a hash of the image, rounded to 255ths."""
    values = (image.double() * 255).round().to(torch.int32).contiguous()
    digest = hashlib.blake2b(values.numpy().tobytes(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
