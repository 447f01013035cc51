from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from lehr.errors import InvalidValue
from lehr.files.toml_text import comment, written

AWKWARD: dict[str, dict[str, object]] = {
    "words": {"quoted": 'a "b" \\ c', "lines": "a\nb\tc\r", "control": "\x00\x1b\x7f", "greek": "ε ≤ 3", "empty": ""},
    "numbers": {"whole": 3, "small": 1e-300, "large": 1e22, "third": 1 / 3, "no": False, "list": [1, 2.5, "x"]},
    "nested": {"a b": {"kind": "cosine", "points": [[0, 1.0], [5, 0.1]]}, "nothing": {}, "ä.ö": [{"x": True}]},
}


def test_what_is_written_is_read_back() -> None:
    assert tomllib.loads(written(AWKWARD)) == AWKWARD


def test_types_are_kept() -> None:
    read = tomllib.loads(written({"t": {"whole": 1, "real": 1.0, "flag": True}}))["t"]
    assert [type(value) for value in read.values()] == [int, float, bool]


def test_empty_tables_are_left_out_and_paths_are_words() -> None:
    assert tomllib.loads(written({"a": {}, "b": {"file": Path("x/y")}})) == {"b": {"file": "x/y"}}


@pytest.mark.parametrize("value", [None, math.nan, math.inf, {1, 2}])
def test_what_toml_has_no_form_for_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="setting"):
        written({"t": {"key": value}})


def test_a_comment_says_nothing_to_a_reader_of_toml() -> None:
    assert tomllib.loads(comment("x = 1\ny = 2\x1b[31m\x7f")) == {}
