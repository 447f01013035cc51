from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.grouping import checked_groups, weight_of_each
from lehr.gradients.materialised import MaterialisedEngine
from lehr.gradients.one_by_one import OneByOneEngine

NAMES = ("weight", "bias", "gain")
WRONG_GROUPS = {
    "one missing": [["weight"], ["bias"]],
    "one twice": [["weight", "bias"], ["gain", "weight"]],
    "one twice in its group": [["weight", "weight", "bias", "gain"]],
    "one unknown": [["weight", "bias", "gain", "other"]],
    "none": [],
}
every_wrong_grouping = pytest.mark.parametrize("groups", WRONG_GROUPS.values(), ids=WRONG_GROUPS.keys())


def test_without_groups_all_parameters_are_one() -> None:
    assert checked_groups(None, names=NAMES) == [NAMES]


def test_groups_in_any_order_are_taken_as_they_are() -> None:
    groups = [["gain"], ["bias", "weight"]]
    assert checked_groups(groups, names=NAMES) is groups


@every_wrong_grouping
def test_groups_that_do_not_name_every_parameter_once_are_refused(groups: Any) -> None:
    with pytest.raises(InvalidValue, match=r"groups must be such that each of .*'gain'\] is named once"):
        checked_groups(groups, names=NAMES)


def test_every_parameter_has_the_weight_of_its_group() -> None:
    weights = torch.arange(6.0).reshape(3, 2)
    found = weight_of_each(weights, [["gain"], ["bias", "weight"]], names=NAMES, num_records=3)
    assert {name: value.tolist() for name, value in found.items()} == {
        "gain": [0, 2, 4],
        "bias": [1, 3, 5],
        "weight": [1, 3, 5],
    }


def test_without_groups_every_parameter_has_the_same_weight() -> None:
    found = weight_of_each(torch.arange(2.0), None, names=NAMES, num_records=2)
    assert all(value.tolist() == [0, 1] for value in found.values())
    assert tuple(found) == NAMES


@pytest.mark.parametrize("weights", [torch.ones(1), torch.ones(4), torch.ones(()), torch.ones(3, 1), [1.0] * 3, 1.0])
def test_weights_that_are_not_one_for_each_record_are_refused(weights: Any) -> None:
    with pytest.raises(InvalidValue, match=r"weights must be a tensor of shape \(3,\), one for each record; given"):
        weight_of_each(weights, None, names=NAMES, num_records=3)


@pytest.mark.parametrize("weights", [torch.ones(3), torch.ones(2, 3), torch.ones(3, 1), torch.ones(1, 2)])
def test_weights_that_are_not_one_for_each_record_and_group_are_refused(weights: Tensor) -> None:
    with pytest.raises(InvalidValue, match=r"weights must be a tensor of shape \(3, 2\), .* and group"):
        weight_of_each(weights, [["gain"], ["bias", "weight"]], names=NAMES, num_records=3)


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().sum(1)


def ghost(model: nn.Module, loss_fn: Any) -> GhostEngine:
    return GhostEngine(model, loss_fn, compiled=False)


@pytest.mark.parametrize("engine", [ghost, MaterialisedEngine, OneByOneEngine])
def test_every_engine_refuses_what_does_not_fit(engine: Any) -> None:
    found = engine(nn.Linear(3, 2), squares).gradients(torch.randn(4, 3), torch.randn(4, 2))
    wrong: list[tuple[Tensor, Any]] = [
        (torch.ones(4, 1), [["weight"]]),
        (torch.ones(4, 2), [["weight", "bias"], ["weight"]]),
        (torch.ones(1), None),
        (torch.ones(4), [["weight", "bias"]]),
    ]
    for weights, groups in wrong:
        with pytest.raises(InvalidValue, match=r"(groups|weights) must be"):
            found.weighted_sum(weights, groups)
    with pytest.raises(InvalidValue, match="groups must be"):
        found.norms([["weight"]])
