from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import NotPrivate
from lehr.gradients.mixing import DRAWS_IN_PYTHON, draws_for_all, refuse_mixed_records


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


def test_a_layer_that_is_given_records_apart_is_accepted() -> None:
    check_layer(lambda values: values.unsqueeze(1) * 2, torch.randn(2, 2))


@pytest.mark.parametrize("function", KEEPING.values(), ids=KEEPING.keys())
def test_a_model_that_keeps_records_apart_is_accepted(function: Any) -> None:
    check(function, torch.linspace(3, -1, 24).reshape(6, 4))


def test_nothing_is_left_behind() -> None:
    before = torch.get_rng_state()
    model = check(KEEPING["dropout"], torch.ones(4, 3))
    assert model.seen == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_words_are_checked_as_well() -> None:
    with pytest.raises(NotPrivate):
        check(lambda words: words.sum(0, keepdim=True) + words, torch.arange(6).reshape(3, 2))


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


def test_a_try_that_says_something_gives_no_reason() -> None:
    assert said(Function(KEEPING["each for itself"]), torch.randn(4, 3)) is None


def test_where_a_model_returns_no_records_what_its_layers_were_given_counts() -> None:
    model = nn.ModuleDict({"inner": nn.Identity()})

    def run(values: Tensor) -> Any:
        return values.sum(), [("inner", values)]

    assert refuse_mixed_records(model, run, torch.randn(4, 3), num_images=4) is None
    assert refuse_mixed_records(model, run, torch.ones(4, 3), num_images=4) == "it gives the same for all of them"


def test_one_record_is_not_tried() -> None:
    assert check(MIXING["centred over the batch"], torch.ones(1, 3)).seen == 0


def test_a_model_that_cannot_be_run_on_two_records_is_left_to_the_run_that_follows() -> None:
    check(lambda values: values.reshape(5, 3) - values.mean(0), torch.ones(5, 3))


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
