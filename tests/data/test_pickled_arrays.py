from __future__ import annotations

import contextlib
import datetime
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.data import pickled_arrays
from lehr.errors import InvalidValue

VALUES = np.arange(6, dtype=np.uint8).reshape(2, 3)
# What Python 2 wrote: texts that are bytes, and an array whose numbers are such a text.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
    b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
    b"K\x00tb\x89T\x06\x00\x00\x00\x00\x01\x02\x03\x04\x05tbU\x06labelsq\x08]q\x09(K\x07M\x00\x01eu."
)


@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
def test_arrays_lists_numbers_and_texts_read_as_they_were_written(protocol: int) -> None:
    written = {"data": VALUES, "labels": [1, 2, 300], "name": "batch", "none": None, "yes": True, "half": 0.5}
    read = pickled_arrays.loads(pickle.dumps(written, protocol=protocol))
    assert isinstance(read, dict)
    assert read.pop("data").tolist() == VALUES.tolist()
    assert read == {name: value for name, value in written.items() if name != "data"}


def test_a_pickle_of_python_2_reads_with_bytes_for_its_texts() -> None:
    read = pickled_arrays.loads(PYTHON_2)
    assert isinstance(read, dict)
    assert read[b"data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read[b"labels"] == [7, 256]


def test_an_array_stored_by_columns_reads_the_same() -> None:
    read = pickled_arrays.loads(pickle.dumps(np.asfortranarray(VALUES), protocol=2))
    assert isinstance(read, np.ndarray)
    assert read.tolist() == VALUES.tolist()


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_pickle_that_would_run_a_program_runs_nothing(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    hostile = pickle.dumps({"data": _Runs(str(made))}, protocol=protocol)
    with pytest.raises(InvalidValue, match="plain values and arrays only"):
        pickled_arrays.loads(hostile)
    assert not made.exists()
    pickle.loads(hostile)
    assert made.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"object": 1}], dtype=object),
        np.arange(3.0),
        np.zeros(3, dtype="u1,u1"),
        datetime.date(2020, 1, 1),
        {1, 2},
        np.uint8(3),
    ],
    ids=str,
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidValue):
        pickled_arrays.loads(pickle.dumps(value, protocol=2))


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\x02.", id="nothing on the stack"),
        pytest.param(b"\x80\x02K\x01K\x02\x87.", id="more taken than made"),
        pytest.param(b"\x80\x02h\x05.", id="a memory never made"),
        pytest.param(b"\x80\x02e.", id="no mark"),
        pytest.param(b"\x80\x02K\x01K\x02a.", id="appends to a number"),
        pytest.param(b"\x80\x02}(]K\x01u.", id="a list for a key"),
        pytest.param(b"\x80\x02}(K\x01u.", id="a key without a value"),
        pytest.param(b"\x80\x02K\x01}b.", id="state for a number"),
        pytest.param(b"\x80\x02cnumpy\ndtype\n}b.", id="state for a name"),
        pytest.param(b"\x80\x02cnumpy\nndarray\nK\x05\x85R.", id="an array of five"),
        pytest.param(b"\x80\x02K\x01K\x02R.", id="calls a number"),
        pytest.param(b"\x80\x02r\xff\xff\xff\xff.", id="a memory of billions with nothing to keep"),
        pytest.param(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", id="bytes longer than the file"),
        pytest.param(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02K\x04\x86"), id="another shape"),
        pytest.param(PYTHON_2.replace(b"K\x02K\x03\x86", b"K\x02J\xfd\xff\xff\xff\x86"), id="a length below zero"),
        pytest.param(PYTHON_2[:-1], id="no end"),
    ],
)
def test_a_damaged_or_hostile_pickle_is_refused(hostile: bytes) -> None:
    with pytest.raises(InvalidValue):
        pickled_arrays.loads(hostile)


def test_a_list_nested_in_itself_in_many_places_costs_nothing() -> None:
    nested = io.BytesIO()
    nested.write(b"\x80\x02]q\x00")
    for level in range(60):
        nested.write(b"](" + bytes([ord("h"), level]) * 50 + b"eq" + bytes([level + 1]))
    pickled_arrays.loads(nested.getvalue() + b".")


@given(place=st.integers(0, len(PYTHON_2) - 1), value=st.integers(0, 255))
def test_a_changed_byte_gives_a_value_or_the_one_error(place: int, value: int) -> None:
    changed = bytearray(PYTHON_2)
    changed[place] = value
    with contextlib.suppress(InvalidValue):
        pickled_arrays.loads(changed)
