"""Normalisation: stored images become numbers in [0, 1], normalised with public constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.interfaces import moved

_LARGEST_BYTE = 255


@dataclass(frozen=True)
class Preparation:
    """A mean and a standard deviation per channel, or one for all channels, in units of [0, 1]; empty for none.

    They must be public: published constants, or numbers known without the private records. A mean computed from private
    records would be a release that is not charged.

    >>> Preparation(mean=(0.5,), std=(0.25,)).normalised(torch.ones(1, 1, 1, 1)).item()
    2.0
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise InvalidValue("std", allowed=f"one number for each of the {len(self.mean)} means", given=self.std)
        for mean, std in zip(self.mean, self.std, strict=True):
            validate.finite(mean=mean)
            validate.positive(std=std)

    def unit(self, inputs: Tensor) -> Tensor:
        """Return bytes as float32 in [0, 1]; other dtypes unchanged."""
        return inputs.to(torch.float32).mul_(1 / _LARGEST_BYTE) if inputs.dtype == torch.uint8 else inputs

    def normalised(self, images: Tensor) -> Tensor:
        """Return images of shape ...CHW minus the mean, divided by the standard deviation, by channel."""
        if not self.mean:
            return images
        if len(self.mean) == 1:
            # Multiplying is several times as fast as dividing.
            return images.mul(1 / self.std[0]).sub_(self.mean[0] / self.std[0])
        if images.ndim < 3 or images.shape[-3] != len(self.mean):
            raise InvalidValue("images", allowed=f"of {len(self.mean)} channels", given=tuple(images.shape))
        both = (torch.tensor(values, dtype=images.dtype).view(-1, 1, 1) for values in (self.mean, self.std))
        mean, std = (moved(values, images.device) for values in both)
        return (images - mean) / std

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return ``normalised(unit(inputs))``: the network's inputs without augmentation."""
        if inputs.dtype == torch.uint8 and len(self.mean) == 1:
            scale, shift = 1 / (_LARGEST_BYTE * self.std[0]), self.mean[0] / self.std[0]
            return inputs.to(torch.float32).mul_(scale).sub_(shift)
        return self.normalised(self.unit(inputs))

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """Return the preparation of a JSON form; missing or surplus fields raise."""
        given: dict[str, Any] = strict_json.fields("preparation", shape, ("mean", "std"))
        mean, std = (strict_json.list_of(name, given[name], lambda value: value) for name in ("mean", "std"))
        return cls(mean=mean, std=std)  # type: ignore[arg-type]
