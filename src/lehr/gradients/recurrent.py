"""What models need under ``vmap``: kernels that it knows.

Recurrent layers have fused kernels that it does not know and plain ones that it knows half, and fused attention has no
rule for it. Masks of transformers are left out where every word counts, which is a branch on values unless transformers
takes the model to be traced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def parameters(model: nn.Module) -> frozenset[str]:
    """The parameters of recurrent layers. Their cells add in place to what comes of the weights, so these must have the
    record axis; expanded, it takes no memory.
    """
    inside = {id(own) for layer in model.modules() if isinstance(layer, nn.RNNBase) for own in layer.parameters()}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in inside)


@contextmanager
def under_vmap(*, has_cells: bool = False) -> Iterator[None]:
    """Around a run by ``vmap``; ``has_cells`` says whether recurrent layers are in it."""
    masks = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        # Fused attention would be run record after record on a CPU; on a GPU some of its kernels fail, or give zeros.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(plain_kernels(has_cells))
        if hasattr(masks, "is_tracing"):
            stack.enter_context(patch.object(masks, "is_tracing", lambda tensor=None: True))
        yield


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
