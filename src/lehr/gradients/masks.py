"""Which records of a physical batch count: padding is left out."""

from __future__ import annotations

import torch
from torch import Tensor

from lehr.errors import InvalidValue


def checked_mask(mask_B: Tensor | None, *, num_records: int, device: torch.device) -> Tensor:  # noqa: N803
    """The mask itself, on the device; with none, every record counts."""
    if mask_B is None:
        return torch.ones(num_records, dtype=torch.bool, device=device)
    found: object = mask_B
    if not isinstance(found, Tensor) or found.dtype is not torch.bool or found.shape != (num_records,):
        given = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InvalidValue("mask_B", allowed=f"torch.bool ({num_records},), one for each record", given=given)
    return mask_B.to(device)
