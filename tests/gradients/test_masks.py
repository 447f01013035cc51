from __future__ import annotations

from typing import Any

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.gradients.masks import checked_mask

CPU = torch.device("cpu")


def test_without_a_mask_every_record_counts() -> None:
    assert checked_mask(None, num_records=3, device=CPU).tolist() == [True, True, True]


def test_a_mask_is_taken_as_it_is() -> None:
    mask = torch.tensor([True, False])
    assert checked_mask(mask, num_records=2, device=CPU) is mask


@pytest.mark.parametrize(
    "mask",
    [
        torch.ones(3),
        torch.ones(2, dtype=torch.bool),
        torch.ones(3, 1, dtype=torch.bool),
        torch.tensor(True),
        [True, True, True],
        True,
    ],
)
def test_a_mask_of_another_type_or_shape_is_refused(mask: Any) -> None:
    with pytest.raises(InvalidValue, match=r"mask_B must be torch.bool \(3,\)"):
        checked_mask(mask, num_records=3, device=CPU)
