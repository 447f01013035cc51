from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr.gradients.physical import physical_batches


def batch_of(records: int) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    values = torch.arange(1, records + 1)
    return values.float().reshape(-1, 1), {"target": values}, values % 3 != 0


@given(records=st.integers(1, 20), size=st.integers(1, 25))
def test_every_record_is_in_one_part_and_what_fills_up_does_not_count(records: int, size: int) -> None:
    batch = batch_of(records)
    parts = list(physical_batches(batch, size=size))
    assert all(mask.shape == (size,) for _, _, mask in parts) or size == records
    inputs, targets, mask = (
        torch.cat(column) for column in zip(*((i, t["target"], m) for i, t, m in parts), strict=True)
    )
    assert torch.equal(inputs[:records], batch[0])
    assert torch.equal(targets[:records], batch[1]["target"])
    assert torch.equal(mask[:records], batch[2])
    assert not mask[records:].any()
    assert inputs.shape[0] - records < size


def test_types_are_kept() -> None:
    *_, (inputs, targets, mask) = physical_batches(batch_of(5), size=3)
    assert (inputs.dtype, targets["target"].dtype, mask.dtype) == (torch.float32, torch.long, torch.bool)


@pytest.mark.parametrize("size", [None, 5])
def test_a_batch_that_fits_is_handed_on_as_it_is(size: int | None) -> None:
    batch = batch_of(5)
    [part] = physical_batches(batch, size=size)
    assert part is batch
