"""Vision transformers: their size, that every token is seen, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.vision_transformer import SelfAttention, VisionTransformer, vision_transformer


def small(**given: Any) -> VisionTransformer:
    return vision_transformer(**{"image_side": 8, "patch_side": 4, "width": 12, "depth": 2, **given})


def test_every_pixel_and_every_parameter_counts() -> None:
    network, images = small(), torch.randn(2, 3, 8, 8, requires_grad=True)
    assert dict(network.named_parameters(recurse=False)).keys() == {"class_token", "positions"}
    network(images).square().sum().backward()
    assert images.grad is not None
    assert images.grad.all()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


def test_attention_is_that_of_torch() -> None:
    ours, theirs = SelfAttention(12, 3), nn.MultiheadAttention(12, 3, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.queries_keys_values.weight)
        theirs.in_proj_bias.copy_(ours.queries_keys_values.bias)
        theirs.out_proj.load_state_dict(ours.mixed.state_dict())
    stream = torch.randn(2, 5, 12)
    torch.testing.assert_close(ours(stream), theirs(stream, stream, stream, need_weights=False)[0])


@pytest.mark.parametrize("given, name", [({"patch_side": 3}, "patch_side"), ({"num_heads": 5}, "num_heads")])
def test_sizes_that_do_not_divide_are_refused_by_name(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        small(**given)
    assert refused.value.name == name
