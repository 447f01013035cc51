"""In which type a model is run, and how far its rounding can put a summed gradient above its reported norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lehr.gradients.batches import each
from lehr.interfaces import Tensors, at_least_float32

# How much larger than its reported norm the gradient of a record can be when it is summed, relative to the norm.
# Measured, with a reserve, by tests/gradients/test_precision.py.
MARGINS = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2**-6, torch.float16: 2**-6}
PRECISIONS = {"as_model": None, "bfloat16": torch.bfloat16}


def margin(dtype: torch.dtype) -> float:
    """For a model that runs in this type."""
    return MARGINS[dtype]


def narrow(values: Any, dtype: torch.dtype | None) -> Any:
    """Floating point tensors in the type that the model runs in; with none, as they are."""
    if dtype is None:
        return values
    return each(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, values)


def widen(values: Any) -> Any:
    """Floating point tensors in float32 or better."""
    return each(lambda leaf: leaf.to(at_least_float32(leaf.dtype)) if leaf.is_floating_point() else leaf, values)


def first_dtype(parameters: Tensors) -> torch.dtype:
    """The type that the parameters are kept in."""
    first: Tensor = next(iter(parameters.values()))
    return first.dtype
