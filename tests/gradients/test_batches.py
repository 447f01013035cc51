"""What engines are given: batches, masks, groups and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients import batches
from lehr.gradients.batches import check_groups, check_mask, weight_of_each
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.materialised import MaterialisedEngine
from tests.gradients.one_by_one import OneByOneEngine

IMAGES, WORDS = torch.randn(3, 2, 4, 4), torch.arange(3)
FORMS: list[Any] = [IMAGES, (IMAGES, WORDS), {"images": IMAGES, "words": WORDS}]


def add(images: Tensor, words: Tensor | None = None) -> Tensor:
    return images.sum() + (0 if words is None else words.sum())


@pytest.mark.parametrize("inputs", FORMS)
def test_a_batch_may_be_a_tensor_a_tuple_or_named(inputs: Any) -> None:
    expected = add(IMAGES) if isinstance(inputs, Tensor) else add(IMAGES, WORDS)
    assert batches.call(add, inputs) == expected
    assert batches.num_records(inputs, WORDS) == 3
    assert all(leaf.shape[0] == 3 for leaf in batches.leaves(inputs))


@pytest.mark.parametrize(
    "inputs, targets",
    [
        (IMAGES, WORDS[:2]),
        ((IMAGES, WORDS[:2]), WORDS),
        (IMAGES, torch.tensor(1)),
        ({}, []),
        (torch.tensor(1.0), WORDS),
    ],
)
def test_tensors_that_do_not_begin_with_the_same_records_are_refused(inputs: Any, targets: Any) -> None:
    with pytest.raises(InvalidValue, match="batch must be tensors that begin with the same number of records"):
        batches.num_records(inputs, targets)


def test_a_shared_parameter_is_trained_once_and_a_frozen_one_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    assert list(batches.trainable(model)) == ["0.weight", "0.bias"]


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one parameter that requires grad"):
        batches.trainable(nn.Flatten())


@pytest.mark.parametrize("losses", [torch.ones(()), torch.ones(6), torch.ones(3, 1), 1.0, None])
def test_losses_that_are_not_one_per_record_are_refused(losses: object) -> None:
    with pytest.raises(InvalidValue, match=r"loss_fn must be a function with one loss per record, of shape \(3,\)"):
        batches.one_each(losses, num_records=3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_a_trained_parameter_that_is_of_no_type_with_a_margin_is_refused_by_name(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2)
    model.gain = nn.Parameter(torch.ones(2).to(dtype))
    with pytest.raises(InvalidValue, match=rf"torch.float64.*given: 'gain: {dtype}'"):
        batches.trainable(model)
    model.gain.requires_grad_(False)
    assert set(batches.trainable(model)) == {"weight", "bias"}


CPU = torch.device("cpu")


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
        check_mask(mask, num_records=3, device=CPU)


NAMES = ("weight", "bias", "gain")
WRONG_GROUPS = {
    "one missing": [["weight"], ["bias"]],
    "one twice": [["weight", "bias"], ["gain", "weight"]],
    "one twice in its group": [["weight", "weight", "bias", "gain"]],
    "one unknown": [["weight", "bias", "gain", "other"]],
    "none": [],
}
every_wrong_grouping = pytest.mark.parametrize("groups", WRONG_GROUPS.values(), ids=WRONG_GROUPS.keys())


@every_wrong_grouping
def test_groups_that_do_not_name_every_parameter_once_are_refused(groups: Any) -> None:
    with pytest.raises(InvalidValue, match=r"groups must be such that each of .*'gain'\] is named once"):
        check_groups(groups, names=NAMES)


def test_every_parameter_has_the_weight_of_its_group() -> None:
    weights = torch.arange(6.0).reshape(3, 2)
    found = weight_of_each(weights, [["gain"], ["bias", "weight"]], names=NAMES, num_records=3)
    assert {name: value.tolist() for name, value in found.items()} == {
        "gain": [0, 2, 4],
        "bias": [1, 3, 5],
        "weight": [1, 3, 5],
    }


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
