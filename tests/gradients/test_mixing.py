from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import NotPrivate
from lehr.gradients.mixing import refuse_mixed_records


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


def check(function: Any, values: Tensor, **settings: Any) -> Function:
    model = Function(function)
    refuse_mixed_records(model, model, values, num_images=len(values), **settings)
    return model


@pytest.mark.parametrize("function", MIXING.values(), ids=MIXING.keys())
@pytest.mark.parametrize("views", [1, 2])
def test_a_model_that_mixes_records_is_refused(function: Any, views: int) -> None:
    values = torch.linspace(3, -1, 24).reshape(6, 4)
    with pytest.raises(NotPrivate, match=r"changes with the other records.*materialised engine"):
        check(function, values, views=views)


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


def test_one_record_is_not_tried() -> None:
    assert check(MIXING["centred over the batch"], torch.ones(1, 3)).seen == 0


def test_a_model_that_cannot_be_run_on_two_records_is_left_to_the_run_that_follows() -> None:
    check(lambda values: values.reshape(5, 3), torch.ones(5, 3))
