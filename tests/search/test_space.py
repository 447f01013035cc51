from __future__ import annotations

from typing import Any

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.search.space import WORDS, Space

ALL = {
    "optimizer": ["sgd", "adam"],
    "learning_rate": {"low": 0.1, "high": 1, "log": True},
    "adaptive_learning_rate": {"low": 0.001, "high": 0.1, "log": True},
    "momentum": [0.0, 0.9],
    "dampening": [0.0, 0.9],
    "ema_decay": [0.0, 0.99],
    "augmentation": ["none", "flip_crop"],
    "views": [1, 4],
    "network": ["small_cnn"],
    "batch_factor": [0.5, 1],
}


def test_every_word_is_known() -> None:
    assert list(ALL) == list(WORDS)
    assert [dimension.name for dimension in Space.read(ALL).dimensions] == list(WORDS)


@pytest.mark.parametrize(
    "name",
    ["momentun", "data.name", "privacy.epsilon", "privacy.delta", "privacy.stated", "training.view", "search.trials"],
)
def test_what_is_no_setting_or_must_not_be_varied_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"key of \[search.space\]"):
        Space.read({name: [1, 2]})


@pytest.mark.parametrize("shape", [{}, [], None, "momentum"])
def test_a_space_of_nothing_is_refused(shape: Any) -> None:
    with pytest.raises(InvalidValue, match=r"\[search.space\]"):
        Space.read(shape)


def test_dotted_keys_may_be_quoted_or_not() -> None:
    assert Space.read({"method": {"clip_norm": [1, 2]}}) == Space.read({"method.clip_norm": [1, 2]})


def test_what_decides_is_asked_for_first_whatever_the_order_of_the_file() -> None:
    names = [dimension.name for dimension in Space.read(dict(reversed(ALL.items()))).dimensions]
    assert names == list(WORDS)


def test_settings_are_asked_for_only_where_they_mean_something() -> None:
    space = Space.read(ALL)
    first, last = (space.chosen(lambda d, place=place: d.tried[place]) for place in (0, -1))  # type: ignore[misc]
    assert {"adaptive_learning_rate", "dampening", "views"} & first.keys() == set()
    assert {"learning_rate", "momentum", "dampening"} & last.keys() == set()


def test_one_learning_rate_serves_every_optimizer_where_it_stands_alone() -> None:
    space = Space.read({"optimizer": ["adam"], "learning_rate": [0.1]})
    assert space.chosen(lambda d: d.tried[0]) == {"optimizer": "adam", "learning_rate": 0.1}


def test_draws_are_of_the_space_and_differ() -> None:
    space, generator = Space.read(ALL), torch.Generator().manual_seed(0)
    draws = [space.drawn(generator) for _ in range(50)]
    assert len({str(draw) for draw in draws}) == 50
    assert {"sgd", "adam"} == {draw["optimizer"] for draw in draws}


def test_every_combination_is_listed_once_and_none_that_is_not_asked_for() -> None:
    space = Space.read({key: ALL[key] for key in ("optimizer", "momentum", "dampening", "augmentation", "views")})
    found = space.combinations()
    # three of SGD (no momentum; momentum with either dampening) and one of Adam, each with three kinds of views
    assert len(found) == 12
    assert len({str(sorted(one.items())) for one in found}) == 12


def test_a_range_without_steps_has_no_combinations() -> None:
    with pytest.raises(InvalidValue, match="learning_rate"):
        Space.read(ALL).combinations()


def test_what_a_study_keeps_is_read_back() -> None:
    space = Space.read({"network": [{"network": "small_cnn", "image_side": 8}], "momentum": [0.5]})
    parameters = space.chosen(lambda d: d.tried[0])
    assert space.meant(parameters) == {"network": {"network": "small_cnn", "image_side": 8}, "momentum": 0.5}
