"""The page for those who come from Opacus names everything that Opacus has."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import lehr.compat.opacus

PAGE = Path(__file__).parents[3] / "docs" / "opacus.md"
ROW = re.compile(r"^\| (?P<names>.+?) \| (?P<how>same|better|missing|refused) \|(?P<what>.*)\|$", flags=re.MULTILINE)


def rows() -> dict[str, str]:
    """Every name in the first column of a table, and how it stands here."""
    text = PAGE.read_text(encoding="utf-8")
    return {name: row["how"] for row in ROW.finditer(text) for name in re.findall(r"`([^`]+)`", row["names"])}


def public_names(package: str) -> Iterator[str]:
    """What a package offers, with everything below it: what ``__all__`` has, or else what is defined there."""
    module = importlib.import_module(package)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == package
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]
    yield from (name for name in getattr(module, "__all__", own) if not name.startswith("__"))
    for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
        # The tests are not offered, and the module for Lightning needs that library.
        if inner.name not in ("tests", "lightning"):
            yield from public_names(f"{package}.{inner.name}")


def test_every_public_name_of_opacus_stands_in_the_table() -> None:
    pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = set(public_names("opacus"))
    assert len(found) > 100
    assert sorted(found - set(rows())) == []


def test_every_argument_of_make_private_is_taken_or_stands_in_the_table() -> None:
    pytest.importorskip("opacus")
    text = PAGE.read_text(encoding="utf-8")
    for name in ("poisson_sampling", "clipping", "noise_generator", "grad_sample_mode", "wrap_model", "rand_on_empty"):
        assert name in text


def test_whatever_is_called_missing_is_missing_and_whatever_is_not_is_there() -> None:
    offered = set(public_names("lehr.compat.opacus")) | {"utils"}
    classes = {name for name in offered if name[0].isupper()}
    missing = {name for name, how in rows().items() if how == "missing"}
    assert sorted(classes & missing) == []
    assert sorted(set(lehr.compat.opacus.__all__) - set(rows())) == ["UnprovenWarning"]
