"""Synthetic records, and the checks on them for mixed records and shared random numbers."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import NotPrivate
from lehr.gradients.synthetic import ATTEMPTS, DRAWS_IN_PYTHON, SyntheticRecords, draws_for_all, refuse_mixed_records

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
every_leaf = pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES.keys())


def made_up(attempt: SyntheticRecords, leaf: Tensor, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    result: Tensor = attempt.batch(leaf, num_images=5, rows=rows)
    return result


@every_attempt
@every_leaf
def test_the_two_images_differ_and_have_the_shape_of_the_batch(attempt: SyntheticRecords, leaf: Tensor) -> None:
    pair = made_up(attempt, leaf)
    assert pair.shape == (2, *leaf.shape[1:])
    assert not torch.equal(pair[0], pair[1])
    assert pair.dtype == (torch.float64 if attempt.is_wide and leaf.is_floating_point() else leaf.dtype)


@every_attempt
@every_leaf
def test_no_number_of_the_batch_takes_part(attempt: SyntheticRecords, leaf: Tensor) -> None:
    assert torch.equal(made_up(attempt, leaf), made_up(attempt, torch.zeros_like(leaf)))


@pytest.mark.parametrize("attempt", [attempt for attempt in ATTEMPTS if attempt.is_positive], ids=str)
def test_positive_numbers_are_within_zero_and_one(attempt: SyntheticRecords) -> None:
    pair = made_up(attempt, torch.zeros(5, 1000))
    assert pair.min() > 0
    assert pair.max() < 1


@every_attempt
def test_a_mask_never_leaves_out_all_positions_in_one_of_the_attempts_and_all_others_in_the_next(
    attempt: SyntheticRecords,
) -> None:
    pair = made_up(attempt, LEAVES["masks"])
    assert pair[0].all() == (not attempt.is_positive)
    assert pair[1].sum() == (1 if attempt.is_positive else 2)


@every_attempt
def test_what_all_records_share_is_kept(attempt: SyntheticRecords) -> None:
    positions = torch.arange(7.0)
    assert torch.equal(attempt.batch(positions, num_images=5, rows=(0, 1)), positions)


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


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("leaf", [torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64)])
def test_no_two_parts_of_an_image_are_alike(attempt: SyntheticRecords, leaf: Tensor) -> None:
    """Where a model compares two parts, gradients would vanish, and everything would agree with them."""
    made = attempt.batch({"a": leaf, "b": leaf}, num_images=3, rows=[0, 1])
    assert not any(torch.equal(made["a"][row], made["b"][row]) for row in (0, 1))


class Function(nn.Module):
    seen: Tensor

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: Tensor) -> Any:
        self.seen += 1
        return self.function(values)


MIXING = {
    "centred over the batch": lambda values: values - values.mean(0),
    "a little of the others": lambda values: values + 1e-3 * values.sum(0),
    "sorted": lambda values: values.sort(0).values,
    "one of two outputs": lambda values: (values, {"other": values.flip(0)}),
    "time before records": lambda values: values.cumsum(0),
}
KEEPING = {
    "each for itself": lambda values: values.square(),
    "softmax over features": lambda values: values.softmax(1),
    "dropout": lambda values: nn.functional.dropout(values, 0.5),
    "a summary beside": lambda values: (values, values.mean()),
    "not a number": lambda values: values / 0 * 0,
}


def said(model: nn.Module, values: Tensor, **settings: Any) -> str | None:
    """As if a layer inside were given nothing but the model's input."""
    return refuse_mixed_records(model, lambda values: (model(values), []), values, num_images=len(values), **settings)


def check(function: Any, values: Tensor, **settings: Any) -> Function:
    model = Function(function)
    said(model, values, **settings)
    return model


def check_layer(given: Any, values: Tensor) -> None:
    """As if the layer "inner" were given this of the model's input, and the model made nothing of it."""
    model = nn.ModuleDict({"inner": nn.Identity()})
    refuse_mixed_records(model, lambda values: (values, [("inner", given(values))]), values, num_images=len(values))


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING.keys())
@pytest.mark.parametrize("views", [1, 2])
def test_a_model_that_mixes_records_is_refused(function: Any, views: int) -> None:
    values = torch.linspace(3, -1, 24).reshape(6, 4)
    with pytest.raises(NotPrivate, match=r"changes with the other records.*materialised engine"):
        check(function, values, views=views)


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING.keys())
def test_a_layer_that_is_given_mixed_records_is_refused_by_its_path(function: Any) -> None:
    def given(values: Tensor) -> Any:
        result = function(values)
        return result[1]["other"] if isinstance(result, tuple) else result

    with pytest.raises(NotPrivate, match=r"inner \(Identity\).*changes with the other records"):
        check_layer(given, torch.linspace(3, -1, 24).reshape(6, 4))


@pytest.mark.parametrize("records", [2, 3, 4])
def test_another_axis_that_is_as_long_as_the_batch_by_chance_is_found_out(records: int) -> None:
    with pytest.raises(NotPrivate, match=r"inner \(Identity\).*record axis does not come first"):
        check_layer(lambda values: values.transpose(0, 1), torch.randn(records, records))


@pytest.mark.parametrize("function", KEEPING.values(), ids=KEEPING.keys())
def test_a_model_that_keeps_records_apart_is_accepted(function: Any) -> None:
    check(function, torch.linspace(3, -1, 24).reshape(6, 4))


def test_nothing_is_left_behind() -> None:
    before = torch.get_rng_state()
    model = check(KEEPING["dropout"], torch.ones(4, 3))
    assert model.seen == 0
    assert torch.equal(torch.get_rng_state(), before)


SAYS_NOTHING = {
    "not finite": (lambda values: values / 0 * 0, torch.randn(4, 3)),
    "gives the same": (lambda values: values - values.mean(0), torch.ones(4, 3)),
    "cannot be run": (lambda values: values.reshape(5, 3) - values.mean(0), torch.randn(5, 3)),
    "only one record": (MIXING["centred over the batch"], torch.ones(1, 3)),
}


@pytest.mark.parametrize("reason", SAYS_NOTHING)
def test_a_try_in_which_nothing_could_make_a_difference_says_so(reason: str) -> None:
    function, values = SAYS_NOTHING[reason]
    answer = said(Function(function), values)
    assert answer is not None
    assert reason in answer


def test_where_a_model_returns_no_records_what_its_layers_were_given_counts() -> None:
    model = nn.ModuleDict({"inner": nn.Identity()})

    def run(values: Tensor) -> Any:
        return values.sum(), [("inner", values)]

    assert refuse_mixed_records(model, run, torch.randn(4, 3), num_images=4) is None
    assert refuse_mixed_records(model, run, torch.ones(4, 3), num_images=4) == "it gives the same for all of them"


def drawn(function: Any) -> str | None:
    model = nn.Linear(3, 3)
    return draws_for_all(model, lambda values: function(model(values)), lambda rows: torch.ones(len(rows), 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values * torch.rand([]),
        lambda values: values if torch.rand(1) > 0.1 else -values,
        lambda values: values * torch.nn.functional.dropout(torch.ones(1, 3), 0.1),
        lambda values: values + torch.randn(3),
    ],
)
def test_random_numbers_that_records_share_are_found(function: Any) -> None:
    assert drawn(function) is not None


@pytest.mark.parametrize(
    "function",
    [
        lambda values: values,
        lambda values: torch.nn.functional.dropout(values, 0.5),
        lambda values: values * torch.rand(values.shape[0], 1),
        lambda values: values if torch.rand(1) >= 0.0 else -values,  # such as LayerDrop that is switched off
    ],
)
def test_random_numbers_of_each_record_and_idle_ones_are_not(function: Any) -> None:
    assert drawn(function) is None


def test_a_coin_of_python_is_found_and_put_back() -> None:
    before = random.getstate()
    assert drawn(lambda values: values * random.random()) == DRAWS_IN_PYTHON
    assert random.getstate() == before


def test_words_are_checked_as_well() -> None:
    with pytest.raises(NotPrivate):
        check(lambda words: words.sum(0, keepdim=True) + words, torch.arange(6).reshape(3, 2))
