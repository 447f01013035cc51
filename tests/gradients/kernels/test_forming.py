from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.gradients.kernels import forming
from tests.gradients.kernels.convolutions import SHAPES, Convolution, in_order_of_columns

HUNDRED = Convolution(channels=2, outputs=3, sizes=(6, 6), kernel=3, records=100, views=2)


def squares_by_loop(shape: Convolution, inputs: Tensor, output_grads: Tensor) -> Tensor:
    return shape.grads_by_loop(inputs, output_grads).flatten(1).square().sum(1)


@pytest.mark.parametrize("records_at_once", [1, 7, 33, 99, 100, 101])
def test_in_how_many_chunks_gradients_are_formed_changes_nothing(
    records_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs, output_grads = HUNDRED.batch()
    bytes_of_a_record = HUNDRED.views * 16 * HUNDRED.channels * 9 * inputs.element_size()
    monkeypatch.setattr(forming, "_CACHED_BYTES", records_at_once * bytes_of_a_record)
    grads = forming.formed(inputs, output_grads, HUNDRED.geometry, records=100)
    norms = forming.squared_norms(inputs, output_grads, HUNDRED.geometry, records=100)
    torch.testing.assert_close(norms, squares_by_loop(HUNDRED, inputs, output_grads), rtol=1e-10, atol=0)
    expected = in_order_of_columns(HUNDRED.grads_by_loop(inputs, output_grads))
    torch.testing.assert_close(grads, expected.flatten(1), rtol=0, atol=1e-10)


def test_a_record_larger_than_a_chunk_is_still_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "_CACHED_BYTES", 1)
    shape = SHAPES["volume"]
    norms = forming.squared_norms(*shape.batch(), shape.geometry, records=shape.records)
    torch.testing.assert_close(norms, squares_by_loop(shape, *shape.batch()), rtol=1e-10, atol=0)


@pytest.mark.parametrize("is_kept", [True, False])
def test_forming_is_a_sound_operator(is_kept: bool) -> None:
    shape = SHAPES["image, views, groups"]
    arguments = (*shape.batch(), [2, 2], [1, 1], [0, 0], [1, 1], 2, shape.records, is_kept)
    operator = torch.ops.lehr.form_convolution.default
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))
