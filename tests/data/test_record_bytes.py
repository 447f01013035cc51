from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor

from lehr.data.record_bytes import contents


def of(inputs: Tensor) -> list[bytes]:
    return [bytes(content) for content in contents(inputs)]


def test_each_record_is_its_own_bytes() -> None:
    assert of(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)) == [b"\1\2", b"\3\4"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_equal_records_have_equal_bytes_in_every_type_and_order_of_memory(dtype: torch.dtype) -> None:
    inputs = torch.tensor([[[0, 1], [1, 0]], [[1, 1], [0, 0]], [[0, 1], [1, 0]]], dtype=dtype)
    first, second, third = of(inputs)
    assert first == third != second
    assert of(inputs.transpose(1, 2).contiguous().transpose(1, 2)) == [first, second, third]


def test_zero_is_zero_whatever_its_sign() -> None:
    assert of(torch.tensor([[-0.0]])) == of(torch.tensor([[0.0]]))


def test_no_records_and_records_of_nothing() -> None:
    assert of(torch.zeros(0, 3)) == []
    assert of(torch.zeros(2, 0)) == [b"", b""]
    assert len(of(torch.zeros(3))) == 3


def test_more_records_than_are_copied_at_once_stay_in_order() -> None:
    numbers = torch.arange(10_000, dtype=torch.int64)
    assert of(numbers) == [number.to_bytes(8, sys.byteorder) for number in range(10_000)]
