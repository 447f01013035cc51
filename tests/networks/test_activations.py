"""Activations by their names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.networks.activations import ACTIVATIONS, activation_named
from lehr.networks.tempered_sigmoid import BEST, TemperedSigmoid


@pytest.mark.parametrize("word", ACTIVATIONS)
def test_every_name_makes_a_new_activation_each_time(word: str) -> None:
    make = activation_named(word)
    assert make is ACTIVATIONS[word]
    assert make() is not make()
    assert make()(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize(
    "word, triplet",
    [
        ("tempered_sigmoid", (2, 2, 1)),
        ("tempered_sigmoid(1.97, 2.27, 1.15)", (1.97, 2.27, 1.15)),
        (" tempered_sigmoid ( 1,2 ,-3e-1 ) ", (1, 2, -0.3)),
        *((f"tempered_sigmoid({name})", triplet) for name, triplet in BEST.items()),
    ],
)
def test_a_tempered_sigmoid_is_said_with_its_numbers_or_a_data_set(word: str, triplet: tuple[float, ...]) -> None:
    assert repr(activation_named(word)()) == repr(TemperedSigmoid(*triplet))


@pytest.mark.parametrize(
    "word",
    [
        "step",
        "",
        "Tanh",
        "tanh(1)",
        "tempered_sigmoid()",
        "tempered_sigmoid(1, 2)",
        "tempered_sigmoid(1, 2, 3, 4)",
        "tempered_sigmoid(1, 2, three)",
        "tempered_sigmoid(imagenet)",
        "tempered_sigmoid(1, 2, 3",
        None,
        2.0,
        torch.nn.ReLU,
    ],
    ids=str,
)
def test_what_names_no_activation_is_refused_with_those_that_there_are(word: Any) -> None:
    says = r"activation must be one of elu, .*tempered_sigmoid\(scale, inverse_temperature, offset\).*; given: "
    with pytest.raises(InvalidValue, match=says):
        activation_named(word)


@pytest.mark.parametrize(
    "word, says",
    [
        ("tempered_sigmoid(0, 2, 1)", "scale must be a finite number > 0"),
        ("tempered_sigmoid(2, -2, 1)", "inverse_temperature must be a finite number > 0"),
        ("tempered_sigmoid(2, 2, nan)", "offset must be a finite number"),
    ],
)
def test_numbers_out_of_range_are_refused_when_they_are_named(word: str, says: str) -> None:
    with pytest.raises(InvalidValue, match=says):
        activation_named(word)
