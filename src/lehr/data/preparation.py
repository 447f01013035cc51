"""From stored images to what a network sees: numbers in [0, 1], then normalised with public constants."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lehr.errors import InvalidValue

_LARGEST_BYTE = 255


@dataclass(frozen=True)
class Preparation:
    """A mean and a standard deviation for each channel, in units of [0, 1]; one of each serves every channel.

    They are public: published constants, or numbers known without looking at the private records. A mean that was
    computed from the private records would be a release that nobody paid for. With no numbers at all, normalising
    changes nothing.

    >>> Preparation(mean=(0.5,), std=(0.25,)).normalised(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InvalidValue("std", allowed=f"one number for each of the {len(self.mean)} means", given=self.std)
        if not all(_is_finite(value) for value in self.mean):
            raise InvalidValue("mean", allowed="finite numbers", given=self.mean)
        if not all(_is_finite(value) and value > 0 for value in self.std):
            raise InvalidValue("std", allowed="finite numbers > 0", given=self.std)

    def unit(self, inputs: Tensor) -> Tensor:
        """Bytes as float32 in [0, 1]; whatever is not bytes is left as it is."""
        return inputs.to(torch.float32).mul_(1 / _LARGEST_BYTE) if inputs.dtype == torch.uint8 else inputs

    def normalised(self, images: Tensor) -> Tensor:
        """Images of shape ...CHW with the mean taken off and divided by the standard deviation, by channel."""
        if not self.mean:
            return images
        if len(self.mean) == 1:
            # Multiplying is several times as fast as dividing.
            return images.mul(1 / self.std[0]).sub_(self.mean[0] / self.std[0])
        channels = images.shape[-3] if images.ndim >= 3 else None
        if channels != len(self.mean):
            raise InvalidValue("images", allowed=f"of {len(self.mean)} channels", given=tuple(images.shape))
        return (images - _by_channel(self.mean, images)) / _by_channel(self.std, images)

    def prepared(self, inputs: Tensor) -> Tensor:
        """Both in one: what a network sees of images that are not augmented."""
        if inputs.dtype == torch.uint8 and len(self.mean) == 1:
            scale, shift = 1 / (_LARGEST_BYTE * self.std[0]), self.mean[0] / self.std[0]
            return inputs.to(torch.float32).mul_(scale).sub_(shift)
        return self.normalised(self.unit(inputs))

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The preparation of a JSON form. Missing or surplus fields are refused."""
        if not isinstance(shape, dict) or set(shape) != {"mean", "std"}:
            raise InvalidValue("preparation", allowed="an object with the fields mean and std", given=shape)
        for name, values in shape.items():
            if not isinstance(values, list):
                raise InvalidValue(name, allowed="a list of numbers", given=values)
        return cls(mean=tuple(shape["mean"]), std=tuple(shape["std"]))


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _by_channel(values: tuple[float, ...], images: Tensor) -> Tensor:
    return torch.tensor(values, dtype=images.dtype, device=images.device).view(-1, 1, 1)
