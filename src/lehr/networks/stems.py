"""How a residual network begins: large images are shrunk fourfold at once, small ones keep their size."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from lehr import validate

STEMS = ("imagenet", "small")


class MakesConvolution(Protocol):
    """Makes a convolution that is padded by half of its kernel."""

    def __call__(self, in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Module: ...


def stem_layers(
    stem: str, in_channels: int, out_channels: int, *, convolution: MakesConvolution, activated: tuple[nn.Module, ...]
) -> list[nn.Module]:
    """A convolution, what activates it, and a pool where images are large.

    ``"imagenet"`` is the stem of He et al. (2016): 7 × 7 pixels with a stride of 2, then the largest of 3 × 3 with a
    stride of 2. ``"small"`` is 3 × 3 pixels and nothing else, for images of about 32 × 32.
    """
    if validate.one_of(STEMS, stem=stem) == "small":
        return [convolution(in_channels, out_channels, kernel_size=3), *activated]
    pool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
    return [convolution(in_channels, out_channels, kernel_size=7, stride=2), *activated, pool]
