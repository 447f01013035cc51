from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.search.dimension import Choices, Range, read

GENERATOR = torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [1, 1],
        0.5,
        {"low": 1},
        {"low": 1, "high": 1},
        {"low": 2, "high": 1},
        {"low": math.nan, "high": 1},
        {"low": 0, "high": math.inf},
        {"low": 0, "high": 1, "log": True},
        {"low": 1, "high": 2, "log": True, "step": 1},
        {"low": 1, "high": 2, "log": "yes"},
        {"low": 1, "high": 2, "step": 0},
        {"low": 1, "high": 2, "steps": 1},
    ],
)
def test_what_is_neither_choices_nor_a_range_is_refused_by_its_name(shape: Any) -> None:
    with pytest.raises(InvalidValue, match="views"):
        read("views", shape)


def test_a_table_is_kept_as_text_and_meant_as_a_table() -> None:
    tables = [{"network": "wide_resnet", "depth": 16}, "small_cnn"]
    choices = read("network", tables)
    assert all(isinstance(text, str) for text in choices.tried)
    assert [choices.meant(text) for text in choices.tried] == tables


def test_a_range_of_whole_steps_is_of_whole_numbers() -> None:
    views = read("views", {"low": 1, "high": 8, "step": 3})
    assert views.listed == (1, 4, 7)
    assert all(isinstance(value, int) for value in views.listed)


def test_a_step_that_is_no_sum_of_powers_of_two_reaches_the_end() -> None:
    assert len(read("momentum", {"low": 0.0, "high": 0.3, "step": 0.1}).listed or ()) == 4


def test_a_range_without_steps_cannot_be_listed() -> None:
    assert read("momentum", {"low": 0.0, "high": 0.9}).listed is None


def test_draws_lie_within_the_range_and_are_uniform() -> None:
    draws = [float(Range("x", 1.0, 3.0).drawn(GENERATOR)) for _ in range(2000)]
    assert min(draws) >= 1
    assert max(draws) <= 3
    assert abs(sum(draws) / 2000 - 2) < 0.06  # four and a half standard deviations


def test_draws_of_a_logarithmic_range_are_uniform_in_their_ratios() -> None:
    draws = [math.log10(float(Range("x", 0.01, 1.0, log=True).drawn(GENERATOR))) for _ in range(2000)]
    assert abs(sum(draws) / 2000 + 1) < 0.06


def test_each_choice_and_each_step_is_as_likely_as_the_others() -> None:
    for dimension in (Choices("x", ("a", "b", "c")), Range("x", 1, 3, step=1, is_whole=True)):
        draws = [dimension.drawn(GENERATOR) for _ in range(1500)]
        assert all(abs(draws.count(value) - 500) < 90 for value in dimension.listed or ())  # five standard deviations
