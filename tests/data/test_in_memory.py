from __future__ import annotations

import pytest
import torch

from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue
from lehr.interfaces import Records


def small() -> InMemory:
    return InMemory(torch.arange(12.0).view(4, 3), torch.tensor([5, 6, 7, 8]))


def test_a_batch_has_the_records_at_its_places_in_order_and_repeated() -> None:
    inputs, targets = small().batch(torch.tensor([3, 0, 3]))
    assert targets.tolist() == [8, 5, 8]
    assert inputs[:, 0].tolist() == [9.0, 0.0, 9.0]


def test_it_is_what_the_loop_calls_records() -> None:
    records: Records = small()
    assert len(records) == 4


def test_an_empty_batch_has_the_shapes_of_the_records() -> None:
    inputs, targets = small().batch(torch.tensor([], dtype=torch.int64))
    assert (inputs.shape, targets.shape) == ((0, 3), (0,))


def test_some_of_the_records_are_records() -> None:
    assert small().at(torch.tensor([2, 1])).targets.tolist() == [7, 6]
    assert len(small().at(torch.tensor([2, 1]))) == 2
    assert small().to("cpu").inputs.equal(small().inputs)


def test_the_printed_form_shows_neither_values_nor_their_number() -> None:
    assert repr(small()) == "InMemory(inputs torch.float32 (3,), on cpu)"
    assert repr(small()) == repr(small().at(torch.tensor([1])))


@pytest.mark.parametrize(
    "num_inputs, num_targets, told", [(3, 2, "record 2 .* no target"), (2, 3, "record 2 .* no input")]
)
def test_a_record_without_its_other_half_is_named(num_inputs: int, num_targets: int, told: str) -> None:
    with pytest.raises(BadRecord, match=told):
        InMemory(torch.zeros(num_inputs), torch.zeros(num_targets))


def test_what_has_no_record_axis_is_refused() -> None:
    with pytest.raises(InvalidValue, match="inputs must be a tensor"):
        InMemory(torch.tensor(1.0), torch.zeros(1))
    with pytest.raises(InvalidValue, match="targets must be a tensor"):
        InMemory(torch.zeros(1), [1])  # type: ignore[arg-type]
