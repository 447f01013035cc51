"""JSON without NaN or duplicate keys, lines that are there whole or not at all, and TOML that is read back."""

from __future__ import annotations

import json
import math
import resource
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting import events
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import strict_json, toml_text

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON_VALUES)
def test_json_is_read_back(value: object) -> None:
    assert strict_json.loads(strict_json.dumps(value)) == value


def test_infinity_is_written_as_a_word_at_any_depth() -> None:
    assert json.loads(strict_json.dumps({"a": [math.inf, (1.5, math.inf)]})) == {"a": ["infinity", [1.5, "infinity"]]}


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_no_other_non_number_is_written(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        strict_json.dumps({"epsilon": value})


@pytest.mark.parametrize(
    "text, name",
    [
        *((text, "JSON") for text in ("NaN", "[Infinity]", '{"a": -Infinity}')),
        *((text, "JSON") for text in ("", "{", '{"a": 1,}', "1" * 5000, "'a'")),
        ('{"epsilon": 1, "delta": 2, "epsilon": 3}', "JSON"),
        *(("[" * levels + "]" * levels, "file") for levels in (strict_json.DEEPEST + 1, 100_000)),
    ],
    ids=lambda text: text[:20],
)
def test_text_that_is_not_strict_json_is_refused(text: str, name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        strict_json.loads(text)
    assert caught.value.name == name


def test_large_and_deep_json_within_the_limits_is_read() -> None:
    many = {str(number): number for number in range(200_000)}
    assert strict_json.loads(strict_json.dumps(many)) == many
    strict_json.loads("[" * strict_json.DEEPEST + "]" * strict_json.DEEPEST)


@pytest.mark.parametrize("shape", [{"a": 1}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 2}, [1, 2], None])
def test_other_fields_than_the_expected_are_refused(shape: object) -> None:
    with pytest.raises(InvalidValue, match=r"^thing"):
        strict_json.fields("thing", shape, ("a", "b"))


def test_lists_and_objects_are_checked() -> None:
    assert strict_json.list_of("numbers", [1, 2], str) == ("1", "2")
    assert strict_json.check_table({"one": 1}) == {"one": 1}
    with pytest.raises(InvalidValue, match=r"^numbers"):
        strict_json.list_of("numbers", "12", str)
    with pytest.raises(InvalidValue, match=r"^file"):
        strict_json.check_table([])


def test_a_shape_comes_back_through_its_reader(tmp_path: Path) -> None:
    event = events.Repeated(events.Gaussian(2.0), 3)
    strict_json.write(tmp_path / "event.json", events.to_json(event))
    assert strict_json.read(tmp_path / "event.json", events.from_json) == event


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "os.system"}', '{"kind": "gaussian", "noise_multiplier": NaN}'])
def test_a_file_that_its_reader_refuses_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "event.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=r"event\.json"):
        strict_json.read(path, events.from_json)
    assert path.read_text() == text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lines"


def test_lines_come_back_as_they_were_added(path: Path) -> None:
    assert strict_json.read_lines(path) == []
    rows: list[dict[str, object]] = [{"step": 1, "loss": 0.1}, {"on": "ε, held out"}, {"nested": [1, {"two": None}]}]
    for row in rows:
        strict_json.append_line(path, row, mode=0o600)
        assert path.stat().st_mode & 0o777 == 0o600
    assert strict_json.read_lines(path) == rows
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("before", [[], [{"step": 1}]])
def test_a_line_that_was_cut_off_is_not_there_and_does_not_spoil_the_next(path: Path, before: list[object]) -> None:
    whole = b'{"step": 1}\n' if before else b""
    line = '{"step": 2, "on": "ε ε ε"}\n'.encode()
    for cut in range(1, len(line)):
        path.write_bytes(whole + line[:cut])
        assert strict_json.read_lines(path) == before
        strict_json.append_line(path, {"step": 3})
        assert strict_json.read_lines(path) == [*before, {"step": 3}]


@pytest.mark.parametrize("line", [b"{", b'{"loss": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe", b""])
def test_a_whole_line_that_is_no_json_is_damage(path: Path, line: bytes) -> None:
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DamagedFile, match="line 2"):
        strict_json.read_lines(path)


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}])
def test_a_line_that_is_not_json_is_refused_and_nothing_is_written(path: Path, value: object) -> None:
    strict_json.append_line(path, {"step": 1})
    with pytest.raises(InvalidValue, match=r"^line"):
        strict_json.append_line(path, {"x": value})
    with pytest.raises(InvalidValue, match=r"^line"):
        strict_json.rewrite_lines(path, [{"x": value}])
    assert strict_json.read_lines(path) == [{"step": 1}]


def test_lines_are_rewritten(path: Path) -> None:
    for step in range(4):
        strict_json.append_line(path, {"step": step})
    for lines in ([{"step": 0}, {"step": 1}], []):
        strict_json.rewrite_lines(path, lines)
        assert strict_json.read_lines(path) == lines


def test_a_place_that_cannot_be_written_or_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="missing/lines"):
        strict_json.append_line(tmp_path / "missing" / "lines", {"step": 1})
    with pytest.raises(StoreError, match=str(tmp_path)):
        strict_json.read_lines(tmp_path)
    strict_json.append_line(tmp_path / "lines", {"step": 1})
    monkeypatch.setattr(strict_json, "LARGEST_LINES", 5)
    with pytest.raises(StoreError, match="more than 5 bytes"):
        strict_json.append_line(tmp_path / "lines", {"step": 2})


def test_a_full_disk_leaves_the_lines_before_it_and_room_for_those_after(path: Path) -> None:
    strict_json.append_line(path, {"step": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))  # as on a full disk
    try:
        with pytest.raises(StoreError, match="lines"):
            strict_json.append_line(path, {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert strict_json.read_lines(path) == [{"step": 1}]
    strict_json.append_line(path, {"step": 3})
    assert strict_json.read_lines(path) == [{"step": 1}, {"step": 3}]


AWKWARD: dict[str, dict[str, object]] = {
    "words": {"quoted": 'a "b" \\ c', "lines": "a\nb\tc\r", "control": "\x00\x1b\x7f", "greek": "ε ≤ 3", "empty": ""},
    "numbers": {"whole": 3, "small": 1e-300, "large": 1e22, "third": 1 / 3, "no": False, "list": [1, 2.5, "x"]},
    "nested": {"a b": {"kind": "cosine", "points": [[0, 1.0], [5, 0.1]]}, "nothing": {}, "ä.ö": [{"x": True}]},
}


def test_toml_is_read_back_with_its_types() -> None:
    assert tomllib.loads(toml_text.written(AWKWARD)) == AWKWARD
    read = tomllib.loads(toml_text.written({"t": {"whole": 1, "real": 1.0, "flag": True}, "empty": {}}))
    assert [type(value) for value in read.pop("t").values()] == [int, float, bool]
    assert read == {}


@pytest.mark.parametrize("value", [None, math.nan, math.inf, {1, 2}])
def test_a_value_that_toml_does_not_have_is_refused(value: object) -> None:
    with pytest.raises(InvalidValue, match="setting"):
        toml_text.written({"t": {"key": value}})


def test_a_comment_is_not_read() -> None:
    assert tomllib.loads(toml_text.comment("x = 1\ny = 2\x1b[31m\x7f")) == {}
