"""Lines that are only added to: each is there whole, or not at all."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting import events
from lehr.errors import DamagedFile, InvalidValue, StoreError
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
    assert strict_json.check_table({"one": 1}) == {"one": 1}
    with pytest.raises(InvalidValue, match="an object"):
        strict_json.check_table([])


def test_a_shape_comes_back_through_its_reader(tmp_path: Path) -> None:
    event = events.Repeated(events.Gaussian(2.0), 3)
    strict_json.write(tmp_path / "event.json", events.to_json(event))
    assert strict_json.read(tmp_path / "event.json", events.from_json) == event


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "os.system"}', '{"kind": "gaussian", "noise_multiplier": NaN}'])
def test_what_the_reader_refuses_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"cannot use .*event\.json: "):
        strict_json.read(path, events.from_json)
    assert path.read_text() == text


def test_lines_come_back_as_they_were_added(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    rows: list[dict[str, object]] = [{"step": 1, "loss": 0.1}, {"on": "ε, held out"}, {"nested": [1, {"two": None}]}]
    for row in rows:
        strict_json.append_line(path, row)
    assert strict_json.read_lines(path) == rows
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_a_file_that_is_not_there_has_no_lines(tmp_path: Path) -> None:
    assert strict_json.read_lines(tmp_path / "lines") == []


@pytest.mark.parametrize("cut", range(1, 24))
def test_a_line_that_was_cut_off_is_not_there_and_does_not_spoil_the_next(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    strict_json.append_line(path, {"step": 1})
    whole = path.read_bytes()
    strict_json.append_line(path, {"step": 2, "on": "ε ε ε"})
    path.write_bytes(path.read_bytes()[: len(whole) + cut])
    assert strict_json.read_lines(path) == [{"step": 1}]
    strict_json.append_line(path, {"step": 3})
    assert strict_json.read_lines(path) == [{"step": 1}, {"step": 3}]


def test_a_first_line_that_was_cut_off_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b'{"step": ')
    assert strict_json.read_lines(tmp_path / "lines") == []
    strict_json.append_line(tmp_path / "lines", {"step": 1})
    assert strict_json.read_lines(tmp_path / "lines") == [{"step": 1}]


@pytest.mark.parametrize("line", [b"{", b'{"loss": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe", b""])
def test_a_whole_line_that_is_no_json_is_damage_and_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DamagedFile, match=r"line 2 of .*lines cannot be read"):
        strict_json.read_lines(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_what_json_has_no_word_for_is_refused_and_nothing_is_written(value: object, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    strict_json.append_line(path, {"step": 1})
    with pytest.raises(InvalidValue, match="line must be made of finite numbers"):
        strict_json.append_line(path, {"x": value})
    with pytest.raises(InvalidValue, match="line must be made of finite numbers"):
        strict_json.rewrite_lines(path, [{"x": value}])
    assert strict_json.read_lines(path) == [{"step": 1}]


def test_only_the_lines_that_are_kept_are_there_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for step in range(4):
        strict_json.append_line(path, {"step": step})
    strict_json.rewrite_lines(path, [{"step": 0}, {"step": 1}])
    assert strict_json.read_lines(path) == [{"step": 0}, {"step": 1}]
    strict_json.rewrite_lines(path, [])
    assert strict_json.read_lines(path) == []


def test_a_new_file_has_the_mode_that_was_asked_for_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for step in range(2):
        strict_json.append_line(path, {"step": step}, mode=0o600)
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*lines"):
        strict_json.append_line(tmp_path / "missing" / "lines", {"step": 1})
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"cannot read .*folder"):
        strict_json.read_lines(tmp_path / "folder")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """As on a full disk: what goes beyond the size is not written."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_lines_before_it_and_room_for_those_after(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    strict_json.append_line(path, {"step": 1})
    with largest_file(path.stat().st_size + 5), pytest.raises(StoreError, match=r"cannot write .*lines"):
        strict_json.append_line(path, {"step": 2})
    assert strict_json.read_lines(path) == [{"step": 1}]
    strict_json.append_line(path, {"step": 3})
    assert strict_json.read_lines(path) == [{"step": 1}, {"step": 3}]
