from __future__ import annotations

import pytest
import torch

from lehr.data.in_memory import InMemory
from lehr.data.overlap import overlap, sketch
from lehr.errors import InvalidValue


def of(*values: float) -> InMemory:
    return InMemory(torch.tensor(values, dtype=torch.float32).view(-1, 1), torch.arange(len(values)))


def test_shared_records_are_told_by_their_places_in_the_second_set() -> None:
    assert overlap(of(1, 2, 3), of(4, 3, 5, 1)) == (1, 3)


def test_a_shared_input_counts_whatever_its_label() -> None:
    assert overlap(of(7, 8), of(8, 7)) == (0, 1)


def test_disjoint_and_empty_sets_share_nothing() -> None:
    assert not overlap(of(1, 2), of(3))
    assert not overlap(of(), of(3))
    assert not overlap(of(1), of())


def test_sets_that_cannot_be_compared_are_refused_instead_of_called_disjoint() -> None:
    stored_otherwise = InMemory(torch.tensor([[1]], dtype=torch.uint8), torch.zeros(1))
    with pytest.raises(InvalidValue, match="as the first are"):
        overlap(of(1), stored_otherwise)


def test_sketches_share_about_as_much_as_their_sets() -> None:
    whole, half, others = of(*range(4000)), of(*range(2000)), of(*range(4000, 8000))
    assert sketch(whole) == sketch(of(*range(3999, -1, -1)))
    assert 0.3 < len(sketch(whole) & sketch(half)) / len(sketch(half)) < 0.7
    assert not sketch(whole) & sketch(others)
