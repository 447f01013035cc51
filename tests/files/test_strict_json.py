from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.errors import InvalidValue
from lehr.files import strict_json

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_what_is_written_is_read_back(value: object) -> None:
    assert strict_json.loads(strict_json.dumps(value)) == value


def test_infinity_is_written_as_a_word_at_any_depth() -> None:
    assert json.loads(strict_json.dumps({"a": [math.inf, (1.5, math.inf)]})) == {"a": ["infinity", [1.5, "infinity"]]}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_no_other_non_number_is_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        strict_json.dumps({"epsilon": value})


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}'])
def test_non_numbers_are_not_read(text: str) -> None:
    with pytest.raises(InvalidValue, match="without NaN and Infinity"):
        strict_json.loads(text)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1,}', "1" * 5000, "'a'"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="well formed"):
        strict_json.loads(text)


def test_a_doubled_key_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match="names each key once; given: 'epsilon'"):
        strict_json.loads('{"epsilon": 1, "delta": 2, "epsilon": 3}')


def test_an_object_of_very_many_keys_is_read() -> None:
    many = {str(number): number for number in range(200_000)}
    assert strict_json.loads(strict_json.dumps(many)) == many


@pytest.mark.parametrize("levels", [strict_json.DEEPEST + 1, 100_000])
def test_deep_nesting_is_refused(levels: int) -> None:
    with pytest.raises(InvalidValue, match="levels deep"):
        strict_json.loads("[" * levels + "]" * levels)


def test_the_deepest_allowed_nesting_is_read() -> None:
    strict_json.loads("[" * strict_json.DEEPEST + "]" * strict_json.DEEPEST)


@pytest.mark.parametrize("shape", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, [1, 2], None])
def test_other_fields_than_the_expected_are_refused(shape: object) -> None:
    with pytest.raises(InvalidValue, match="thing must be an object"):
        strict_json.fields("thing", shape, ("a", "b"))


def test_a_list_is_read_item_by_item() -> None:
    assert strict_json.list_of("numbers", [1, 2], str) == ("1", "2")
    with pytest.raises(InvalidValue, match="numbers must be a list"):
        strict_json.list_of("numbers", "12", str)


def test_a_table_is_an_object_and_nothing_else() -> None:
    assert strict_json.a_table({"one": 1}) == {"one": 1}
    with pytest.raises(InvalidValue, match="a JSON object"):
        strict_json.a_table([])
