"""The content of each record as bytes, by which records are told apart: its input, without its label.

Two images that are the same image are the same record here, whatever they are labelled.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_CHUNK = 4096


def contents(all_inputs: Tensor) -> Iterator[memoryview]:
    """The bytes of every record's input, in order."""
    for first in range(0, len(all_inputs), _CHUNK):
        inputs = all_inputs[first : first + _CHUNK].detach().cpu()
        if inputs.is_floating_point():
            inputs = inputs + 0.0  # -0.0 becomes 0.0: equal numbers have equal bytes
        whole: memoryview = inputs.contiguous().reshape(-1).view(torch.uint8).numpy().data
        length = len(whole) // len(inputs)
        yield from (whole[place * length : (place + 1) * length] for place in range(len(inputs)))
