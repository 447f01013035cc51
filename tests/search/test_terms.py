from __future__ import annotations

from typing import Any

import pytest

from lehr.configuration import Configuration
from lehr.errors import InvalidValue
from lehr.search.asked import Search
from lehr.search.space import Space
from lehr.search.terms import free_terms


def declared(data: dict[str, Any], search_data: dict[str, Any] | None = None) -> Search:
    return Search(configuration=Configuration(data=data), space=Space.read({"momentum": [0.0]}), data=search_data)


def test_public_and_synthetic_records_are_searched_on_for_nothing() -> None:
    for word in ("public", "synthetic"):
        terms = free_terms(declared({"declared": word}))
        assert word in terms.words
        assert terms.settings_chosen_on == "public"


def test_it_is_the_records_of_the_search_that_count() -> None:
    assert free_terms(declared({"name": "digits"}, {"declared": "public"})).settings_chosen_on == "public"
    with pytest.raises(InvalidValue, match="declared"):
        free_terms(declared({"declared": "public"}, {"name": "digits"}))


def test_private_records_are_refused_with_the_ways_that_there_are() -> None:
    with pytest.raises(InvalidValue, match=r"public or synthetic.*paid for"):
        free_terms(declared({"name": "digits"}))
