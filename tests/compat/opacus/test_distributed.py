from __future__ import annotations

import pytest
from torch import nn

from lehr.compat.opacus.distributed import DifferentiallyPrivateDistributedDataParallel, average_gradients
from lehr.errors import InvalidValue


def test_names_can_be_imported_and_say_where_to_go() -> None:
    for refused in (DifferentiallyPrivateDistributedDataParallel, average_gradients):
        with pytest.raises(InvalidValue, match=r"lehr\.fit under torchrun"):
            refused(nn.Linear(1, 1))
