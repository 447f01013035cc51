from __future__ import annotations

from typing import Any

import pytest

from lehr.cli.settings import tables
from lehr.errors import InvalidValue


@pytest.mark.parametrize(
    "setting, table, key, value",
    [
        ("salvage=true", "method", "salvage", True),
        ("rejection_threshold=4", "method", "rejection_threshold", 4),
        ("learning_rate=1e-3", "method", "learning_rate", 1e-3),
        ("cooling=classic", "method", "cooling", "classic"),
        ('cooling="classic"', "method", "cooling", "classic"),
        ("step_scales=[0.5, 1.0]", "method", "step_scales", [0.5, 1.0]),
        ("schedule={kind='constant'}", "method", "schedule", {"kind": "constant"}),
        ("training.views=2", "training", "views", 2),
        ("model.activation=tempered_sigmoid(1.97, 2.27, 1.15)", "model", "activation", None),
        ("privacy.sampling=without-replacement", "privacy", "sampling", "without-replacement"),
    ],
)
def test_a_value_is_read_as_in_a_file(setting: str, table: str, key: str, value: Any) -> None:
    [(found, keys)] = tables([setting]).items()
    assert found == table
    assert keys == {key: setting.partition("=")[2] if value is None else value}
    assert type(keys[key]) is (str if value is None else type(value))


@pytest.mark.parametrize(
    "given",
    [["views"], ["=3"], ["a.b.c=3"], ["views="], ["views=[1"], ["views=1\nother=2"], ["views=1", "views=2"], ["x={"]],
    ids=str,
)
def test_what_is_no_setting_is_refused(given: list[str]) -> None:
    with pytest.raises(InvalidValue, match="set must be"):
        tables(given)
