"""Images out of focus. Axes: M views, C channels, H rows, W columns, L taps of a filter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lehr import validate
from lehr.data.augmentation.drawing import a_range, sometimes, uniforms


@dataclass(frozen=True, kw_only=True)
class GaussianBlur:
    """Blurred in a share ``probability`` of the views, by a Gaussian whose width in pixels is drawn uniformly.

    The filter is about a tenth of the side long, an odd number of pixels and at least 3. The image is mirrored at its
    edges.
    """

    widths: tuple[float, float] = (0.1, 2.0)
    probability: float = 0.5

    def __post_init__(self) -> None:
        validate.probability(probability=self.probability)
        object.__setattr__(self, "widths", a_range(widths=self.widths))

    def __call__(self, images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        width_M = uniforms(*self.widths, like_M=images_MCHW, generator=generator)[:, 0, 0]  # noqa: N806
        blurred = _blurred_along(3, _blurred_along(2, images_MCHW, width_M), width_M).clamp_(0, 1)
        return sometimes(blurred, images_MCHW, probability=self.probability, generator=generator)


def _blurred_along(axis: int, images_MCHW: Tensor, width_M: Tensor) -> Tensor:  # noqa: N803
    side = images_MCHW.shape[axis]
    reach = max(1, round(side / 20))
    padding = (reach, reach, 0, 0) if axis == 3 else (0, 0, reach, reach)
    padded = functional.pad(images_MCHW, padding, mode="reflect")
    weights_ML = _filter(reach, width_M)  # noqa: N806
    total = torch.zeros_like(images_MCHW)
    for tap in range(2 * reach + 1):
        total.addcmul_(padded.narrow(axis, tap, side), weights_ML[:, tap, None, None, None])
    return total


def _filter(reach: int, width_M: Tensor) -> Tensor:  # noqa: N803
    """The weights of each view's filter, which sum to one."""
    distances_L = torch.arange(-reach, reach + 1, device=width_M.device, dtype=width_M.dtype)  # noqa: N806
    return torch.softmax(-((distances_L / width_M) ** 2) / 2, dim=1)
