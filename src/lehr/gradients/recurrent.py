"""Recurrent layers under ``vmap``, which torch's fused kernels do not know and its plain ones know half."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def parameters(model: nn.Module) -> frozenset[str]:
    """The parameters of recurrent layers. Their cells add in place to what comes of the weights, so these must have the
    record axis; expanded, it takes no memory.
    """
    inside = {id(own) for layer in model.modules() if isinstance(layer, nn.RNNBase) for own in layer.parameters()}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in inside)


@contextmanager
def plain_kernels(wanted: bool = True) -> Iterator[None]:
    """Run without the fused kernels of oneDNN and cuDNN; where none is wanted, change nothing."""
    if not wanted:
        yield
        return
    # None leaves a flag as it is: setting oneDNN's others warns on machines that do not have what they are for.
    kept = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}
    with torch.backends.mkldnn.flags(enabled=False, **kept), torch.backends.cudnn.flags(enabled=False):
        yield
