"""Vision transformers, after Dosovitskiy et al. (2021), with norms before attention and before the linear layers.

The class token and the position embeddings are parameters of the network itself, outside of every layer.

>>> network = vision_transformer(image_side=224, patch_side=16, num_classes=1000)
>>> sum(parameter.numel() for parameter in network.parameters())  # "ViT-Ti/16"
5717416
>>> small = vision_transformer(image_side=32, patch_side=4, width=192, depth=6, num_classes=10)
>>> sum(parameter.numel() for parameter in small.parameters())  # for 32 × 32 pixels, as large as a WRN-16-4
2693578
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.networks.layers import check_divides

INITIAL_STD = 0.02


def vision_transformer(
    *,
    image_side: int = 32,
    patch_side: int = 4,
    width: int = 192,
    depth: int = 12,
    num_heads: int = 3,
    num_classes: int = 10,
    in_channels: int = 3,
) -> VisionTransformer:
    """A vision transformer for square images, cut into square patches; ``width`` is shared by the heads."""
    check_divides("patch_side", patch_side, of=validate.count(image_side=image_side))
    check_divides("num_heads", num_heads, of=validate.count(width=width))
    blocks = [TransformerBlock(width, num_heads) for _ in range(validate.count(depth=depth))]
    network = VisionTransformer(
        patches=nn.Conv2d(in_channels, width, kernel_size=patch_side, stride=patch_side),
        num_patches=(image_side // patch_side) ** 2,
        blocks=nn.Sequential(*blocks, nn.LayerNorm(width)),
        scores=nn.Linear(width, num_classes),
    )
    network.apply(_initialise)
    return network


class VisionTransformer(nn.Module):
    """Patches, a class token before them, positions, blocks, and scores from what became of the class token."""

    def __init__(self, *, patches: nn.Conv2d, num_patches: int, blocks: nn.Sequential, scores: nn.Linear) -> None:
        super().__init__()
        self.patches = patches
        self.class_token = nn.Parameter(INITIAL_STD * torch.randn(1, 1, patches.out_channels))
        self.positions = nn.Parameter(INITIAL_STD * torch.randn(1, num_patches + 1, patches.out_channels))
        self.blocks = blocks
        self.scores = scores

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(tokens.shape[0], -1, -1)
        stream = self.blocks(torch.cat([first, tokens], dim=1) + self.positions)
        scores: Tensor = self.scores(stream[:, 0])
        return scores


class TransformerBlock(nn.Module):
    """Attention, then two linear layers; each sees the stream normalised and adds to it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), SelfAttention(width, num_heads))
        self.linear = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, stream: Tensor) -> Tensor:
        attended = stream + self.attention(stream)
        result: Tensor = attended + self.linear(attended)
        return result


class SelfAttention(nn.Module):
    """Attention of every token to every token."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)

    def forward(self, stream: Tensor) -> Tensor:
        heads = self.queries_keys_values(stream).unflatten(-1, (3, self._num_heads, -1)).transpose(1, 3)
        queries, keys, values = heads.unbind(2)
        # Written out: of torch's fused kernels some fail on a GPU under the transforms that give gradients by record.
        weights = (queries @ keys.mT * queries.shape[-1] ** -0.5).softmax(dim=-1)
        result: Tensor = self.mixed((weights @ values).transpose(1, 2).flatten(2))
        return result


def _initialise(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.trunc_normal_(layer.weight, std=INITIAL_STD)
        nn.init.zeros_(layer.bias)
