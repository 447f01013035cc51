from __future__ import annotations

from pathlib import Path

import pytest

import lehr.data
from tools.fresh_imports import heavy_imports

SOURCES = Path(__file__).parents[2] / "src"


def test_every_public_name_is_there_and_sorted() -> None:
    assert sorted(lehr.data.__all__) == lehr.data.__all__
    for name in lehr.data.__all__:
        assert getattr(lehr.data, name).__name__ == name
    assert set(lehr.data.__all__) <= set(dir(lehr.data))


def test_a_misspelt_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="lode"):
        lehr.data.lode  # type: ignore[attr-defined] # noqa: B018


def test_asking_where_a_data_set_is_and_getting_it_needs_no_torch() -> None:
    light = ["lehr.data", "lehr.data.known", "lehr.data.finding", "lehr.data.getting", "lehr.cli.data"]
    assert heavy_imports(light, watched=["torch", "sklearn", "PIL"], search_path=SOURCES) == {}
    assert heavy_imports(["lehr.data.loading"], watched=["torch"], search_path=SOURCES) != {}
