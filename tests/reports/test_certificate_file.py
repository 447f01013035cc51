from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.reports import certificate_file
from lehr.reports.certificate import Certificate


def test_every_field_comes_back_from_the_file(filled: Certificate, tmp_path: Path) -> None:
    certificate_file.write(tmp_path / "certificate.json", filled)
    assert certificate_file.read(tmp_path / "certificate.json") == filled


def test_empty_fields_come_back_too(filled: Certificate) -> None:
    bare = replace(
        filled, ex_post=None, budget=None, audit=None, settings_cost=None, published_claims=(), passed_over=()
    )
    assert certificate_file.from_json(json.loads(json.dumps(certificate_file.to_json(bare)))) == bare


def test_every_field_is_needed_and_no_other_is_taken(filled: Certificate) -> None:
    shape = certificate_file.to_json(filled)
    for path in _objects(shape):
        for key in _at(shape, path):
            _refused(_without(shape, path, key))
        _refused(_with(shape, path, "surprise", 1))


def test_no_number_may_be_a_word_or_nan_or_negative(filled: Certificate) -> None:
    shape = certificate_file.to_json(filled)
    for path in _objects(shape):
        for key, value in _at(shape, path).items():
            if isinstance(value, float):
                for wrong in ("3", None, True, float("nan"), -1.0):
                    _refused(_with(shape, path, key, wrong))


@pytest.mark.parametrize(
    "change", [{"format": "pdf"}, {"format_version": 1}, {"format_version": 3}, {"format_version": 2.0}]
)
def test_another_format_is_refused(filled: Certificate, change: dict[str, object]) -> None:
    _refused({**certificate_file.to_json(filled), **change})


@pytest.mark.parametrize("shape", [None, [], "certificate", {}, 3])
def test_what_is_no_certificate_is_refused(shape: object) -> None:
    _refused(shape)


def test_a_file_cut_short_anywhere_is_refused_and_named(filled: Certificate, tmp_path: Path) -> None:
    path = tmp_path / "certificate.json"
    certificate_file.write(path, filled)
    text = path.read_text(encoding="utf-8").rstrip()
    for length in range(0, len(text), 97):
        path.write_text(text[:length], encoding="utf-8")
        with pytest.raises(StoreError, match=r"certificate\.json"):
            certificate_file.read(path)


def _refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        certificate_file.from_json(shape)


Path_ = tuple[str | int, ...]


def _objects(shape: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where the objects of a JSON value are."""
    if isinstance(shape, dict):
        yield path
    items = shape.items() if isinstance(shape, dict) else enumerate(shape) if isinstance(shape, list) else ()
    for key, value in items:
        yield from _objects(value, (*path, key))


def _at(shape: Any, path: Path_) -> dict[str, Any]:
    for key in path:
        shape = shape[key]
    assert isinstance(shape, dict)
    return shape


def _with(shape: object, path: Path_, key: str, value: object) -> object:
    changed = copy.deepcopy(shape)
    _at(changed, path)[key] = value
    return changed


def _without(shape: object, path: Path_, key: str) -> object:
    changed = copy.deepcopy(shape)
    del _at(changed, path)[key]
    return changed
