"""The two words by which a run may be counted."""

from __future__ import annotations

import pytest

from lehr.errors import InvalidValue
from lehr.methods.accounting import ACCOUNTINGS, MOMENTS, an_accounting


@pytest.mark.parametrize("word", ACCOUNTINGS)
def test_the_two_words_are_taken(word: str) -> None:
    assert an_accounting(accounting=word) == word


@pytest.mark.parametrize("word", ["Proven", "", None, True])
def test_any_other_word_is_refused_by_name(word: object) -> None:
    with pytest.raises(InvalidValue, match="accounting must be one of proven, published"):
        an_accounting(accounting=word)


def test_the_moments_of_all_steps_are_a_sound_rule() -> None:
    assert not MOMENTS.is_broken
    assert not MOMENTS.counts_accepted_only
