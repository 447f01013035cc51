from __future__ import annotations

import pytest
import torch

from lehr.data.data_set import DataSet
from lehr.data.in_memory import InMemory
from lehr.data.preparation import Preparation
from lehr.errors import InvalidValue


def stated(**changed: object) -> DataSet:
    records = InMemory(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))
    fields: dict[str, object] = {
        "name": "mine",
        "train": records,
        "test": records,
        "num_classes": 2,
        "shape": (1, 2, 2),
        "preparation": Preparation(),
        "records": 5,
    }
    return DataSet(**(fields | changed))  # type: ignore[arg-type]


def test_the_public_number_of_records_is_the_stated_one_not_the_counted_one() -> None:
    assert (stated().records, len(stated().train)) == (5, 4)


@pytest.mark.parametrize("changed", [{"records": 0}, {"records": 1.5}, {"num_classes": 0}, {"name": " "}])
def test_facts_that_cannot_be_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        stated(**changed)
