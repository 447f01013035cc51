"""The numbers that a user states are checked before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lehr
from lehr.errors import InvalidValue

DATA = (torch.randn(500, 3), torch.arange(500) % 2)
SETTINGS: dict[str, Any] = {"num_classes": 2, "noise_multiplier": 1.0, "steps": 2, "batch_size": 20, "silent": True}


def test_a_delta_of_one_over_the_records_warns_and_a_large_one_is_not_certified(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="δ"):
        lehr.fit(nn.Linear(3, 2), DATA, records=500, delta=0.1, directory=tmp_path / "run", **SETTINGS)
    with pytest.raises(InvalidValue) as caught:
        lehr.fit(nn.Linear(3, 2), DATA, records=500, delta=0.1, settings_chosen_on="fixed", **SETTINGS)
    assert caught.value.name == "delta"


@pytest.mark.parametrize("stated", [5000, 50])
def test_a_number_of_records_that_is_off_by_ten_is_refused_without_the_true_one(stated: int) -> None:
    with pytest.raises(InvalidValue) as caught:
        lehr.fit(nn.Linear(3, 2), DATA, records=stated, delta=1e-4, **SETTINGS)
    assert caught.value.name == "records"
    assert "500" not in str(caught.value).replace(str(stated), "")
