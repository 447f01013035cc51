from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.gradients.contributions import chunks
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.contributions.through import Through
from tests.gradients.contributions.parts import assert_consistent, drawn
from tests.gradients.oracle import assert_agrees, batch
from tests.gradients.standardised import standardised_convolution


@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_linear_map_of_the_gradients_is_consistent(records: int) -> None:
    matrix = drawn(4, 3)
    part = Through(Outer(drawn(records, 2, 3), drawn(records, 2, 5)), lambda grad: matrix @ grad)
    assert part.materialised().shape == (records, 4, 5)
    assert_consistent(part)


@pytest.mark.parametrize("records", [0, 1, 4])
def test_a_weight_standardised_convolution_agrees_with_a_loop(records: int) -> None:
    assert_agrees(standardised_convolution(2, 3).double(), *batch(records, 2, 4, 4))


def test_views_of_one_record_are_averaged_first() -> None:
    assert_agrees(standardised_convolution(2, 3).double(), *batch(3, 2, 2, 4, 4), views=2)


def test_a_computed_weight_that_is_used_twice_counts_the_product_between_its_uses() -> None:
    layer = standardised_convolution(2, 2)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 2, 4, 4))


def test_parameters_behind_a_weight_may_be_frozen() -> None:
    for frozen in ("parametrizations.weight.original", "parametrizations.weight.0.gain"):
        layer = standardised_convolution(2, 3).double()
        layer.get_parameter(frozen).requires_grad_(False)
        assert_agrees(layer, *batch(3, 2, 4, 4))


def test_memory_stays_bounded_because_few_records_are_formed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FORMED_BYTES", 4 * 15 * 2)  # two records of 3 × 5 numbers
    seen: list[int] = []

    class Watched(Outer):
        def materialised(self) -> Tensor:
            seen.append(self.records)
            return super().materialised()

        def taken(self, first: int, last: int) -> Watched:
            return Watched(self.output_grads_BTO[first:last], self.inputs_BTI[first:last])

    part = Through(Watched(drawn(7, 2, 3), drawn(7, 2, 5)), lambda grad: 2 * grad)
    squares_B = part.squared_norms()  # noqa: N806
    assert seen == [2, 2, 2, 1]
    torch.testing.assert_close(squares_B, part.materialised().flatten(1).square().sum(1))
