from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.gradients.contributions.lookup import Lookup
from tests.gradients.contributions.parts import assert_consistent, drawn


@settings(max_examples=25)
@given(records=st.integers(0, 3), positions=st.integers(0, 6), num_rows=st.integers(1, 4))
def test_rows_that_are_looked_up_again_and_again_add_up(records: int, positions: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(positions)
    rows = torch.randint(0, num_rows, (records, positions), generator=generator)
    part = Lookup(rows, drawn(records, positions, 3), num_rows)
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


def test_gradients_that_cancel_in_one_row_have_the_norm_that_rounding_may_leave() -> None:
    """Each position is rounded when it is scaled, so that their sum need not cancel as exactly as they do."""
    grads = drawn(1, 1, 3, dtype=torch.float32)
    part = Lookup(torch.tensor([[2, 2]]), torch.cat([grads, -grads], dim=1), 4)
    whole = float(part.squares_apart())
    assert 0 < float(part.squared_norms()) < 1e-12 * whole


def test_a_record_whose_rows_cancel_is_never_longer_than_its_norm_says() -> None:
    """Thirds of the first position and the rest in a second and third one, whose roundings differ."""
    grads = drawn(1, 1, 64, dtype=torch.float32)
    pieces = torch.cat([grads, -grads / 3, -(grads - grads / 3)], dim=1)
    part = Lookup(torch.zeros(1, 3, dtype=torch.long), pieces, 2)
    for weight in (0.1, 1 / 3, 0.7, 12345.678):
        summed = part.weighted_sum(torch.tensor([weight]), torch.tensor([True]))
        assert float(summed.norm()) <= weight * float(part.squared_norms().sqrt())


def test_a_single_position_cannot_cancel_and_has_its_plain_norm() -> None:
    grads = drawn(2, 1, 3)
    part = Lookup(torch.tensor([[2], [0]]), grads, 4)
    assert torch.equal(part.squared_norms(), grads.square().sum((1, 2)))


def test_sums_of_bfloat16_gradients_are_kept_in_float32() -> None:
    ones = torch.ones(1000, 1, 2, dtype=torch.bfloat16)
    part = Lookup(torch.zeros(1000, 1, dtype=torch.long), ones, 3)
    assert part.weighted_sum(torch.ones(1000), torch.ones(1000, dtype=torch.bool))[0].tolist() == [1000.0, 1000.0]
    assert Lookup(torch.zeros(1, 1000, dtype=torch.long), ones.transpose(0, 1), 3).squared_norms().item() == 2e6
