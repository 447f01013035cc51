"""In which type a model is run, and how far its rounding can put a summed gradient above its reported norm."""

from __future__ import annotations

from typing import Any

import torch

from lehr.gradients.batches import each
from lehr.interfaces import at_least_float32

# How much larger than its reported norm the gradient of a record can be when it is summed, relative to the norm. The
# largest that tests/gradients/test_precision.py sees, which fails at a quarter of these: 4e-16 in float64, 1.3e-7 in
# float32, and 1e-7 in bfloat16, where norms and sums are taken in float32 from the same rounded factors. A compiler may
# take the norm of a number before it is rounded and the sum after, which in bfloat16 is 2 ** -8, a quarter of the
# margin; and on a GPU half of the margin covers what products.rounding_of_scaling describes.
MARGINS = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2**-6, torch.float16: 2**-6}
# On a GPU, where it is asked to, torch rounds both factors of a product of matrices to TF32, by 2 ** -11 each. The norm
# may be too small by as much as the sum is too large: 2 ** -9 in all. Convolutions are summed without TF32.
TF32_MARGIN = 2**-7
# What float32 sums over records may be off by, in clip norms, and differently with and without a record; of float64 the
# noise takes care: mechanism.proof.md.
ROUNDING_OF_SUMS = 2**-9
PRECISIONS = {"as_model": None, "bfloat16": torch.bfloat16}


def margin(dtype: torch.dtype, device: torch.device | None = None) -> float:
    """For a model that runs in this type on this device: of a norm, and of the sums that the record is in.

    On a GPU float32 has the margin of TF32 whether or not torch is set to use it: the setting can change after a step
    was compiled, and the difference to a clip norm is less than a hundredth.
    """
    if dtype is torch.float32 and device is not None and device.type == "cuda":
        return TF32_MARGIN + ROUNDING_OF_SUMS
    return MARGINS[dtype] + (0 if dtype is torch.float64 else ROUNDING_OF_SUMS)


def narrow(values: Any, dtype: torch.dtype | None) -> Any:
    """Floating point tensors in the type that the model runs in; with none, as they are."""
    if dtype is None:
        return values
    return each(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, values)


def widen(values: Any) -> Any:
    """Floating point tensors in float32 or better."""
    return each(lambda leaf: leaf.to(at_least_float32(leaf.dtype)) if leaf.is_floating_point() else leaf, values)
