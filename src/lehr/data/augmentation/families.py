"""Augmentations by name: which operations make the views of a record.

>>> images_BCHW = torch.rand(2, 3, 32, 32)
>>> named("flip_crop")(images_BCHW, views=4, generator=torch.Generator().manual_seed(0)).shape
torch.Size([2, 4, 3, 32, 32])

- ``none``: every view is the image
- ``flip_crop``: moved by up to an eighth of the side, and mirrored; what is customary for CIFAR-10
- ``rrc``: a random resized crop, mirrored; "RRC" of TAN (Sander et al. 2023)
- ``ours``: moved by up to 20 of 224 pixels, mirrored, and with colours jittered; "Ours" of TAN
- ``simclr``: the augmentation of SimCLR (Chen et al. 2020)

Axes: B records, K views of each, M = B K views, C channels, H rows, W columns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from lehr import validate
from lehr.data.augmentation.blurring import GaussianBlur
from lehr.data.augmentation.colour import ColourJitter, Grayscale
from lehr.data.augmentation.cropping import PadAndCrop, RandomResizedCrop
from lehr.data.augmentation.flipping import HorizontalFlip
from lehr.errors import InvalidValue


class Operation(Protocol):
    """One change to every view: a frozen dataclass whose draws do not depend on the images."""

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        """The views changed, in the same shape, within [0, 1]."""


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Operations that are done one after the other, drawn anew for each view.

    A view is a function of its own record and of what was drawn for its place in the batch.
    """

    name: str
    operations: tuple[Operation, ...]

    def __post_init__(self) -> None:
        validate.text(name=self.name)
        object.__setattr__(self, "operations", tuple(self.operations))

    def __call__(self, images_BCHW: Tensor, *, views: int, generator: torch.Generator) -> Tensor:  # noqa: N803
        """``views`` views of each image, ``views_BKCHW``. The images are floating point numbers in [0, 1]."""
        validate.count(views=views)
        if images_BCHW.dim() != 4 or not images_BCHW.is_floating_point():
            given = f"{tuple(images_BCHW.shape)} of {images_BCHW.dtype}"
            raise InvalidValue("images", allowed="floating point numbers of shape (B, C, H, W)", given=given)
        shape = (len(images_BCHW), views, *images_BCHW.shape[1:])
        views_MCHW = images_BCHW.unsqueeze(1).expand(shape).reshape(-1, *images_BCHW.shape[1:])  # noqa: N806
        for operation in self.operations if len(images_BCHW) else ():
            views_MCHW = operation(views_MCHW, generator)  # noqa: N806
        return views_MCHW.reshape(shape)

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {"name": self.name, "operations": [_operation_to_json(operation) for operation in self.operations]}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The augmentation of a JSON form. Unknown operations, missing or surplus fields and bad values are refused."""
        if not isinstance(shape, dict) or shape.keys() != {"name", "operations"}:
            raise InvalidValue("augmentation", allowed="an object with the fields name, operations", given=shape)
        if not isinstance(shape["operations"], list):
            raise InvalidValue("operations", allowed="a list of operations", given=shape["operations"])
        return cls(name=shape["name"], operations=tuple(map(_operation_from_json, shape["operations"])))


_TYPE_OF: dict[str, Any] = {
    "pad-and-crop": PadAndCrop,
    "random-resized-crop": RandomResizedCrop,
    "horizontal-flip": HorizontalFlip,
    "colour-jitter": ColourJitter,
    "grayscale": Grayscale,
    "gaussian-blur": GaussianBlur,
}
_KIND_OF = {kind: name for name, kind in _TYPE_OF.items()}

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


def named(name: str) -> Augmentation:
    """The family of this name."""
    return _FAMILIES[validate.one_of(_FAMILIES, augmentation=name)]


def _operation_to_json(operation: Any) -> dict[str, object]:
    if type(operation) not in _KIND_OF:
        allowed = f"one of {', '.join(_TYPE_OF)}, to be written down"
        raise InvalidValue("operation", allowed=allowed, given=operation)
    values = {field.name: getattr(operation, field.name) for field in dataclasses.fields(operation)}
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"kind": _KIND_OF[type(operation)], **listed}


def _operation_from_json(shape: object) -> Operation:
    fields = dict(shape) if isinstance(shape, dict) else {}
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _TYPE_OF:
        raise InvalidValue("operation", allowed="an object whose kind is one of " + ", ".join(_TYPE_OF), given=shape)
    expected = {field.name for field in dataclasses.fields(_TYPE_OF[kind])}
    if fields.keys() != expected:
        raise InvalidValue(f"operation {kind}", allowed=f"with the fields {sorted(expected)}", given=sorted(fields))
    operation: Operation = _TYPE_OF[kind](**fields)
    return operation
