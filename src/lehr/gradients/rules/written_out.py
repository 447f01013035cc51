"""Parts of torch that run past the layers or cannot be mapped over records, replaced by the same steps written out.

A transformer encoder in eval mode goes straight into one fused function, past its own layers, so that there is nothing
to hear; the derivative of ``weight_norm`` knows only one gradient at a time.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm


def written_out(model: nn.Module) -> nn.Module:
    """The same model, changed so that it computes what it did, step by step. To be used on a copy."""
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # the flag for "an activation that the fused function knows"
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
        if type(layer) is _WeightNorm:
            layer.forward = partial(_weight_norm, layer.dim)  # type: ignore[method-assign]
    return model


def _weight_norm(dim: int, lengths: Tensor, directions: Tensor) -> Tensor:
    axes = tuple(axis for axis in range(directions.dim()) if dim == -1 or axis != dim)
    norms: Tensor = torch.linalg.vector_norm(directions, dim=axes, keepdim=True)
    return directions * (lengths / norms)
