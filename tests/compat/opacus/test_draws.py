from __future__ import annotations

import pytest

from lehr.compat.opacus.draws import Draws, Part
from lehr.errors import InvalidValue
from lehr.rng import RunKey


def test_no_two_draws_share_randomness() -> None:
    draws = Draws()
    randomness = [draws.fresh() for _ in range(5)]
    assert len({(one.step, one.attempt) for one in randomness}) == 5


def test_the_same_key_gives_the_same_draws() -> None:
    some, others = (Draws(RunKey(bytes(32))).fresh().uniforms("sampling", 4) for _ in range(2))
    assert some.equal(others)


def test_a_part_is_taken_once_and_the_last_one_given_counts() -> None:
    draws = Draws()
    for size in (3, 2):
        draws.begin(Part(randomness=draws.fresh(), num_records=size, is_last=True))
    assert draws.taken().num_records == 2
    with pytest.raises(InvalidValue, match="without a new batch"):
        draws.taken()


def test_whoever_asked_hears_of_every_part() -> None:
    draws, heard = Draws(), []
    draws.when_begun(lambda: heard.append(draws.taken().num_records))
    for size in (3, 2):
        draws.begin(Part(randomness=draws.fresh(), num_records=size, is_last=True))
    assert heard == [3, 2]
