"""An optimizer that moves anything without noise is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from lehr.compat.trained_parameters import refuse_other_parameters
from lehr.errors import InvalidValue


def test_an_optimizer_over_all_or_some_of_what_is_trained_passes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    refuse_other_parameters(model, optim.Adam(model.parameters()))
    refuse_other_parameters(model, optim.SGD(model[1].parameters(), lr=0.1))


def test_what_is_frozen_may_stand_in_it() -> None:
    model, frozen = nn.Linear(2, 2), nn.Parameter(torch.zeros(1), requires_grad=False)
    refuse_other_parameters(model, optim.SGD([*model.parameters(), frozen], lr=0.1))


def test_a_parameter_that_is_added_later_is_refused() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(InvalidValue, match="2 other trainable parameters"):
        refuse_other_parameters(model, optimizer)


def test_one_that_looks_at_the_records_again_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(InvalidValue, match="LBFGS"):
        refuse_other_parameters(model, optim.LBFGS(model.parameters()))
