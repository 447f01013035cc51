"""What engines are given: batches, masks, groups and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients import batches
from lehr.gradients.batches import check_batch, check_groups, check_mask, one_each, trainable, weight_of_each
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.materialised import MaterialisedEngine
from tests.gradients.one_by_one import OneByOneEngine

IMAGES, WORDS = torch.randn(3, 2, 4, 4), torch.arange(3)
NAMES, TWO = ("weight", "bias", "gain"), [["gain"], ["bias", "weight"]]
CPU = torch.device("cpu")


@pytest.mark.parametrize("inputs", [IMAGES, (IMAGES, WORDS), {"images": IMAGES, "words": WORDS}])
def test_a_batch_may_be_a_tensor_a_tuple_or_named(inputs: Any) -> None:
    def add(images: Tensor, words: Tensor | None = None) -> Tensor:
        return images.sum() + (0 if words is None else words.sum())

    assert batches.call(add, inputs) == (add(IMAGES) if isinstance(inputs, Tensor) else add(IMAGES, WORDS))
    assert batches.num_records(inputs, WORDS) == 3
    assert all(leaf.shape[0] == 3 for leaf in batches.leaves(inputs))


def with_gain(dtype: torch.dtype) -> nn.Module:
    model = nn.Linear(2, 2)
    model.gain = nn.Parameter(torch.ones(2).to(dtype))
    return model


# Calls that are refused, by the name of the argument.
REFUSED: dict[str, list[Callable[[], object]]] = {
    "batch": [
        lambda: batches.num_records(IMAGES, WORDS[:2]),
        lambda: batches.num_records((IMAGES, WORDS[:2]), WORDS),
        lambda: batches.num_records(IMAGES, torch.tensor(1)),
        lambda: batches.num_records({}, []),
        lambda: batches.num_records(torch.tensor(1.0), WORDS),
    ],
    "inputs": [
        lambda: check_batch(IMAGES, WORDS, None, views=4, device=CPU),
        lambda: check_batch((IMAGES, WORDS), WORDS, None, views=2, device=CPU),
    ],
    "model": [
        lambda: trainable(nn.Flatten()),
        lambda: trainable(with_gain(torch.complex64)),
        lambda: trainable(with_gain(torch.float8_e4m3fn)),
    ],
    "loss_fn": [
        lambda losses=losses: one_each(losses, num_records=3)  # type: ignore[misc]
        for losses in (torch.ones(()), torch.ones(6), torch.ones(3, 1), 1.0, None)
    ],
    "mask_B": [
        lambda mask=mask: check_mask(mask, num_records=3, device=CPU)  # type: ignore[misc]
        for mask in (torch.ones(3), torch.ones(2) > 0, torch.ones(3, 1) > 0, torch.tensor(True), [True] * 3, True)
    ],
    "groups": [
        lambda groups=groups: check_groups(groups, names=NAMES)  # type: ignore[misc]
        for groups in (
            [["weight"], ["bias"]],
            [["weight", "bias"], ["gain", "weight"]],
            [["weight", "weight", "bias", "gain"]],
            [["weight", "bias", "gain", "other"]],
            [],
        )
    ],
    "weights": [
        lambda weights=weights, groups=groups: weight_of_each(weights, groups, names=NAMES, num_records=3)  # type: ignore[misc]
        for weights, groups in (
            *((weights, None) for weights in (torch.ones(1), torch.ones(()), torch.ones(3, 1), [1.0] * 3)),
            *((torch.ones(shape), TWO) for shape in ((3,), (2, 3), (3, 1), (1, 2))),
        )
    ],
}


@pytest.mark.parametrize("name, call", [(name, call) for name, calls in REFUSED.items() for call in calls])
def test_what_does_not_fit_is_refused_by_name(name: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        call()
    assert refusal.value.name == name


def test_a_shared_parameter_is_trained_once_and_a_frozen_one_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), with_gain(torch.complex64))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    assert list(trainable(model)) == ["0.weight", "0.bias"]


def test_every_parameter_has_the_weight_of_its_group() -> None:
    found = weight_of_each(torch.arange(6.0).reshape(3, 2), TWO, names=NAMES, num_records=3)
    expected = {"gain": [0, 2, 4], "bias": [1, 3, 5], "weight": [1, 3, 5]}
    assert {name: value.tolist() for name, value in found.items()} == expected


@pytest.mark.parametrize(
    "engine", [lambda *given: GhostEngine(*given, compiled=False), MaterialisedEngine, OneByOneEngine]
)
def test_every_engine_refuses_what_does_not_fit(engine: Any) -> None:
    found = engine(nn.Linear(3, 2), lambda outputs, targets: outputs.sum(1)).gradients(torch.randn(4, 3), torch.ones(4))
    wrong: list[tuple[Tensor, Any]] = [
        (torch.ones(4, 1), [["weight"]]),
        (torch.ones(4, 2), [["weight", "bias"], ["weight"]]),
        (torch.ones(1), None),
        (torch.ones(4), [["weight", "bias"]]),
    ]
    for weights, groups in wrong:
        with pytest.raises(InvalidValue):
            found.weighted_sum(weights, groups)
    with pytest.raises(InvalidValue):
        found.norms([["weight"]])
