"""Physical batches hold every drawn record once, and nothing else counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidValue
from lehr.sampling import physical


@given(places=st.lists(st.integers(0, 10**9), max_size=40, unique=True).map(sorted), size=st.integers(1, 12))
def test_the_masked_places_are_the_draw_and_every_batch_has_the_size(places: list[int], size: int) -> None:
    batches = physical(torch.tensor(places, dtype=torch.int64), size)
    assert [place for batch in batches for place in batch.places_P[batch.mask_P].tolist()] == places
    assert all(batch.places_P.shape == batch.mask_P.shape == (size,) for batch in batches)
    assert len(batches) == -(-len(places) // size)


def test_an_empty_draw_has_no_physical_batch() -> None:
    assert physical(torch.empty(0, dtype=torch.int64), 8) == []


def test_padding_is_place_zero_so_that_it_can_be_fetched() -> None:
    [batch] = physical(torch.tensor([4, 9]), 5)
    assert batch.places_P.tolist() == [4, 9, 0, 0, 0]
    assert batch.mask_P.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_size_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(InvalidValue, match="size"):
        physical(torch.tensor([1]), size)
