from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.gradients.kernels import convolution_norms
from tests.gradients.kernels.convolutions import SHAPES, Convolution, every_shape, in_order_of_columns


def squares_by_loop(shape: Convolution, inputs: Tensor, output_grads: Tensor) -> Tensor:
    return shape.grads_by_loop(inputs, output_grads).flatten(1).square().sum(1)


@every_shape
def test_both_forms_of_the_norm_are_that_of_a_loop(shape: Convolution) -> None:
    batch = shape.batch()
    expected = squares_by_loop(shape, *batch)
    by_gram = convolution_norms.by_gram(*batch, shape.geometry, records=shape.records)
    _, by_forming = convolution_norms.formed_with_norms(*batch, shape.geometry, records=shape.records)
    chosen = convolution_norms.squared_norms(*batch, shape.geometry, records=shape.records)
    for found in (by_gram, by_forming, chosen):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


@every_shape
def test_what_is_kept_is_the_gradient_of_a_loop(shape: Convolution) -> None:
    batch = shape.batch()
    grads, _ = convolution_norms.formed_with_norms(*batch, shape.geometry, records=shape.records)
    expected = in_order_of_columns(shape.grads_by_loop(*batch))
    torch.testing.assert_close(grads, expected, rtol=0, atol=1e-12 * float(expected.abs().max()))


def test_both_forms_are_chosen_by_some_shape() -> None:
    few_places = Convolution(channels=64, outputs=64, sizes=(2, 2), kernel=1)
    many_places = Convolution(channels=2, outputs=2, sizes=(16, 16), kernel=3)
    for shape, is_gram in ((few_places, True), (many_places, False)):
        records = shape.records
        assert convolution_norms.gram_is_cheaper(*shape.batch(), shape.geometry, records=records) is is_gram


def test_gradients_are_kept_where_they_are_small_beside_the_images() -> None:
    small = Convolution(channels=2, outputs=2, sizes=(16, 16), kernel=3)
    large = Convolution(channels=32, outputs=64, sizes=(5, 5), kernel=3)
    for shape, is_kept in ((small, True), (large, False)):
        assert convolution_norms.keeping_pays(*shape.batch(), shape.geometry, records=shape.records) is is_kept


@pytest.mark.parametrize("form", ["gram", "forming"])
def test_half_precision_is_added_up_in_float32(form: str) -> None:
    shape = Convolution(channels=4, outputs=6, sizes=(12, 12), kernel=3, padding=1)
    batch = shape.batch(torch.bfloat16)
    if form == "gram":
        found = convolution_norms.by_gram(*batch, shape.geometry, records=shape.records)
    else:
        _, found = convolution_norms.formed_with_norms(*batch, shape.geometry, records=shape.records)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), squares_by_loop(shape, *batch), rtol=1e-4, atol=0)


def test_a_record_that_is_not_finite_spoils_no_other() -> None:
    shape = SHAPES["image"]
    inputs, output_grads = shape.batch()
    expected = squares_by_loop(shape, inputs, output_grads)
    inputs[1] = torch.inf
    by_gram = convolution_norms.by_gram(inputs, output_grads, shape.geometry, records=shape.records)
    _, by_forming = convolution_norms.formed_with_norms(inputs, output_grads, shape.geometry, records=shape.records)
    for found in (by_gram, by_forming):
        assert not found[1].isfinite()
        torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=1e-10, atol=0)
