"""Images and weights that are made up, to find out what a model does with its records without a look at any of them.

Axes: N images, records times views.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils import _pytree as pytree

_MOVE = 0.05
_EDGE = 0.05  # positive numbers keep away from both ends, where logarithms and odds are not finite


@dataclass(frozen=True)
class MadeUp:
    """Two different images: of numbers of both signs or within (0, 1), in float64 or in the model's own type."""

    is_positive: bool
    is_wide: bool

    def batch(self, inputs: Any, *, num_images: int, rows: Sequence[int]) -> Any:
        """These rows, each 0 or 1, of the two images, in the shapes and types that a batch has."""

        def made_up(leaf: Tensor, pair: Tensor) -> Tensor:
            if leaf.shape[:1] == (num_images,):
                return pair[list(rows)].to(leaf.device)
            return self._typed(leaf) if leaf.is_floating_point() else leaf

        return pytree.tree_map(
            lambda *both: made_up(*both) if isinstance(both[0], Tensor) else both[0], inputs, self.pairs(inputs)
        )

    def pairs(self, batch: Any) -> Any:
        """Both images of everything that a batch consists of: no two parts of an image are alike."""
        leaves, structure = pytree.tree_flatten(batch)
        made = [
            self.pair(leaf, at=at) if isinstance(leaf, Tensor) and leaf.dim() else leaf
            for at, leaf in enumerate(leaves)
        ]
        return pytree.tree_unflatten(made, structure)

    def values(self, model: nn.Module) -> dict[str, Tensor]:
        """Weights a little away from where they are, since a gain of zero hides what stands behind it; and buffers."""
        generator = torch.Generator().manual_seed(0)
        weights = {name: self._moved(value.detach(), generator) for name, value in model.named_parameters()}
        parameters = {name: Parameter(weights[name], value.requires_grad) for name, value in model.named_parameters()}
        buffers = {name: self._typed(buffer.detach().clone()) for name, buffer in model.named_buffers()}
        return {**parameters, **buffers}

    def _moved(self, value: Tensor, generator: torch.Generator) -> Tensor:
        by = _MOVE * torch.randn(value.shape, generator=generator)
        return self._typed(value) + by.to(value.device, self._typed(value).dtype)

    def _typed(self, values: Tensor) -> Tensor:
        return values.double() if self.is_wide and values.is_floating_point() else values

    def pair(self, leaf: Tensor, *, at: int = 0) -> Tensor:
        """Both images, in the shape that an image of this batch has; ``at`` is the place of this part in an image."""
        shape = (2, *leaf.shape[1:])
        if leaf.is_floating_point():
            drawn = torch.randn(shape, generator=torch.Generator().manual_seed(at), dtype=torch.float64)
            drawn = drawn.abs().clamp(_EDGE, 1 - _EDGE) if self.is_positive else drawn
            return drawn if self.is_wide else drawn.to(leaf.dtype)
        if leaf.dtype is torch.bool:
            return _masks(shape, value=not self.is_positive)
        words = (torch.arange(2) + at) % 2 + int(self.is_positive)
        return words.to(leaf.dtype).reshape(2, *(1 for _ in shape[1:])).expand(shape).clone()


ATTEMPTS = tuple(MadeUp(is_positive, is_wide) for is_wide in (True, False) for is_positive in (False, True))


def _masks(shape: Sequence[int], *, value: bool) -> Tensor:
    """They differ in the last place only: attention that is let see nothing has no finite output."""
    masks = torch.full(tuple(shape), value)
    last = masks[1].reshape(-1)[-1:]
    last.fill_(not value)
    return masks
