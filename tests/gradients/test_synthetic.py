"""Synthetic records, and the checks on them for mixed records and shared random numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients.synthetic import ATTEMPTS, DRAWS_IN_PYTHON, SyntheticRecords, refuse_mixing, shared_draws

every_attempt = pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
LEAVES = {
    "numbers": torch.randn(5, 3),
    "narrow numbers": torch.randn(5, 3, dtype=torch.bfloat16),
    "words": torch.randint(0, 9, (5, 3)),
    "pixels": torch.zeros(5, 3, dtype=torch.uint8),
    "masks": torch.zeros(5, 3, dtype=torch.bool),
    "one number each": torch.randn(5),
    "one mask each": torch.ones(5, dtype=torch.bool),
}


@every_attempt
@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES.keys())
def test_two_different_images_in_the_shape_of_the_batch_without_its_numbers(
    attempt: SyntheticRecords, leaf: Tensor
) -> None:
    pair = attempt.batch(leaf, 5, (0, 1))
    assert pair.shape == (2, *leaf.shape[1:])
    assert not torch.equal(pair[0], pair[1])
    assert pair.dtype == (torch.float64 if attempt.is_wide and leaf.is_floating_point() else leaf.dtype)
    assert torch.equal(pair, attempt.batch(torch.zeros_like(leaf), 5, (0, 1)))


@every_attempt
def test_positive_numbers_masks_and_inputs_without_a_record_axis(attempt: SyntheticRecords) -> None:
    numbers, masks = attempt.batch((torch.zeros(5, 1000), LEAVES["masks"]), 5, (0, 1))
    assert bool((numbers > 0).all() and (numbers < 1).all()) is attempt.is_positive
    assert masks[0].all() == (not attempt.is_positive)  # one attempt lets no image see nothing
    assert masks[1].sum() == (1 if attempt.is_positive else 2)
    positions = torch.arange(7.0)
    assert torch.equal(attempt.batch(positions, 5, (0, 1)), positions)


@every_attempt
def test_weights_that_begin_at_zero_are_moved_and_the_model_is_not(attempt: SyntheticRecords) -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    model.register_buffer("seen", torch.ones(2))
    values = attempt.values(model)
    values["seen"].add_(1)
    assert (values["weight"] != 0).all()
    assert not model.weight.any()
    assert model.get_buffer("seen").tolist() == [1.0, 1.0]
    assert torch.equal(values["weight"], attempt.values(model)["weight"])


@every_attempt
@pytest.mark.parametrize("leaf", [torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64)])
def test_no_two_parts_of_an_image_are_alike(attempt: SyntheticRecords, leaf: Tensor) -> None:
    """Where a model compares two parts, gradients would vanish, and everything would agree with them."""
    made = attempt.batch({"a": leaf, "b": leaf}, 3, [0, 1])
    assert not any(torch.equal(made["a"][row], made["b"][row]) for row in (0, 1))


def check(function: Any, pair: Tensor, *, is_layer: bool = False, few: int = 3) -> str | None:
    """Of a model that returns this of its input; or that gives it to its layer "inner", and returns something else."""
    model = nn.ModuleDict({"inner": nn.Identity()})
    model.register_buffer("seen", torch.zeros(()))

    def run(values: Tensor) -> Any:
        model.get_buffer("seen").add_(1)
        found = function(values)
        leaves = found if isinstance(found, tuple) else (found,)
        return [("inner", found), (None, values)] if is_layer else [(None, leaf) for leaf in leaves]

    def batch(rows: Sequence[int]) -> Tensor:
        return pair[list(rows)]

    before = torch.get_rng_state()
    try:
        return refuse_mixing(model, run, batch, few=few)
    finally:
        assert model.get_buffer("seen") == 0
        assert torch.equal(torch.get_rng_state(), before)


PAIR = torch.tensor([[3.0, 2.0, 1.5, 1.0], [-1.0, 0.5, -2.0, 0.0]])
MIXING = {
    "centred over the batch": lambda values: values - values.mean(0),
    "a little of the others": lambda values: values + 1e-3 * values.sum(0),
    "sorted": lambda values: values.sort(0).values,
    "time before records": lambda values: values.cumsum(0),
    "words": lambda values: values.long().sum(0, keepdim=True) + values.long(),
}
APART = {
    "each for itself": lambda values: values.square(),
    "softmax over features": lambda values: values.softmax(1),
    "dropout": lambda values: functional.dropout(values, 0.5),
    "a summary beside": lambda values: (values, values.mean()),
}


@pytest.mark.parametrize("is_layer, layer", [(False, "the model itself (ModuleDict)"), (True, "inner (Identity)")])
@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING.keys())
def test_mixed_records_are_refused_by_the_path_of_the_layer(function: Any, is_layer: bool, layer: str) -> None:
    with pytest.raises(NotPrivate) as refusal:
        check(function, PAIR, is_layer=is_layer)
    assert refusal.value.layer == layer


@pytest.mark.parametrize("function", APART.values(), ids=APART.keys())
def test_records_apart_are_accepted(function: Any) -> None:
    assert check(function, PAIR) is None


@pytest.mark.parametrize(
    "function", [lambda values: (values, values.flip(0)), lambda values: values if values[0, 0] > 0 else (values,) * 2]
)
def test_one_of_two_outputs_or_another_number_of_them_is_refused(function: Any) -> None:
    with pytest.raises(NotPrivate):
        check(function, PAIR)


@pytest.mark.parametrize("length", [2, 3, 4])
def test_an_axis_that_is_as_long_as_the_batch_by_chance_is_refused(length: int) -> None:
    with pytest.raises(NotPrivate) as refusal:
        check(lambda values: values.transpose(0, 1), torch.randn(2, length), is_layer=True, few=2 if length > 2 else 3)
    assert refusal.value.layer == "inner (Identity)"


WHY_NOTHING = {
    "not finite": (lambda values: values / 0 * 0, PAIR),
    "gives the same": (lambda values: values - values.mean(0), torch.ones(2, 4)),
    "cannot be run": (lambda values: values.reshape(5, 3), PAIR),
    "gives the same, without outputs": (lambda values: values.sum(), torch.ones(2, 4)),
}


@pytest.mark.parametrize("reason", WHY_NOTHING)
def test_a_try_in_which_nothing_could_make_a_difference_says_so(reason: str) -> None:
    function, pair = WHY_NOTHING[reason]
    answer = check(function, pair)
    assert answer is not None
    assert reason.partition(",")[0] in answer


def draws(function: Any) -> str | None:
    model = nn.Linear(3, 3)
    return shared_draws(model, lambda values: function(model(values)), lambda rows: torch.ones(len(rows), 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values * torch.rand([]),
        lambda values: values if torch.rand(1) > 0.1 else -values,
        lambda values: values * functional.dropout(torch.ones(1, 3), 0.1),
        lambda values: values + torch.randn(3),
    ],
)
def test_random_numbers_that_records_share_are_found(function: Any) -> None:
    assert draws(function) is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values,
        lambda values: functional.dropout(values, 0.5),
        lambda values: values * torch.rand(values.shape[0], 1),
        lambda values: values if torch.rand(1) >= 0.0 else -values,  # such as LayerDrop that is switched off
    ],
)
def test_random_numbers_of_each_record_and_idle_ones_are_not(function: Any) -> None:
    assert draws(function) is None


def test_a_coin_of_python_is_found_and_put_back() -> None:
    before = random.getstate()
    assert draws(lambda values: values * random.random()) == DRAWS_IN_PYTHON
    assert random.getstate() == before
