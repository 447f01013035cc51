"""Guesses are made about the clearest records, their number without looking, and null guesses certify nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lehr.auditing.gaussian_tradeoff import epsilon_from_mu
from lehr.errors import InvalidValue
from lehr.games import guessing

STATED = {"delta": 1e-5, "confidence": 0.95}


def test_the_largest_are_guessed_there_and_the_smallest_not() -> None:
    scores = np.arange(10.0)
    is_present = scores >= 5
    assert guessing.num_right(scores, is_present, guesses=10) == 10
    assert guessing.num_right(-scores, is_present, guesses=10) == 0
    assert guessing.num_right(scores, scores == 9, guesses=3) == 2  # nine and eight are guessed there, zero is not


def test_equal_scores_are_guessed_by_their_order_alone() -> None:
    is_present = np.array([False, True] * 5)
    assert guessing.num_right(np.zeros(10), is_present, guesses=4) == 2


def test_no_guess_is_no_right_one() -> None:
    assert guessing.num_right(np.arange(4.0), np.ones(4, dtype=bool), guesses=0) == 0


def test_more_guesses_than_records_are_refused() -> None:
    with pytest.raises(InvalidValue, match="guesses"):
        guessing.num_right(np.zeros(3), np.ones(3, dtype=bool), guesses=4)


@pytest.mark.parametrize("claimed", [0.0, 0.5, 3.0, 30.0, math.inf])
def test_there_is_a_number_of_guesses_for_every_claim(claimed: float) -> None:
    found = guessing.most_telling(claimed_epsilon=claimed, canaries=500, **STATED)
    assert 0 < found <= 500


def test_a_number_that_was_chosen_certifies_more_than_one_that_was_not() -> None:
    generator = np.random.default_rng(1)
    is_present = generator.random(2000) < 0.5
    scores = generator.standard_normal(2000) + 2.0 * is_present
    chosen = guessing.most_telling(claimed_epsilon=epsilon_from_mu(2.0, delta=1e-5), canaries=2000, **STATED)
    best, all_of_them, few = (
        guessing.bounds(scores, is_present, guesses=guesses, **STATED)[0].epsilon for guesses in (chosen, 2000, 10)
    )
    assert best > max(all_of_them, few)


def test_null_scores_certify_nothing() -> None:
    generator = np.random.default_rng(2)
    certified = [
        guessing.bounds(generator.standard_normal(200), generator.random(200) < 0.5, guesses=40, **STATED)
        for _ in range(100)
    ]
    # Five of a hundred may, at this confidence; thirteen or more would be a chance of one in a thousand.
    assert sum(alone.epsilon > 0 for alone, _ in certified) < 13
    assert sum(with_tradeoff.epsilon > 0 for _, with_tradeoff in certified) < 13
