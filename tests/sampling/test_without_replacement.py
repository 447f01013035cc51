"""Draws without replacement: every set is equally likely, and the event counts replaced records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from scipy import stats

from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, SampledWithoutReplacement
from lehr.sampling import WithoutReplacement, without_replacement
from tests.sampling.laws import KEY
from tests.sampling.test_poisson import chosen


def p_value_of_equally_likely_sets(sets: Sequence[tuple[int, ...]], *, records: int, size: int) -> float:
    possible = list(combinations(range(records), size))
    return float(stats.chisquare([sets.count(each) for each in possible]).pvalue)


@pytest.mark.parametrize("records, size", [(7, 3), (7, 5), (6, 3), (5, 1)])
def test_every_set_is_equally_likely(records: int, size: int) -> None:
    sampling = WithoutReplacement(sample_size=size, records=records)
    sets = [tuple(sampling.draw(records, KEY.at(step=step, attempt=0)).tolist()) for step in range(3000)]
    assert p_value_of_equally_likely_sets(sets, records=records, size=size) > 1e-3


def test_windows_of_neighbours_are_found_not_to_be_equally_likely() -> None:
    starts = (KEY.at(step=0, attempt=0).uniforms("start", 3000) * 5).long().tolist()
    windows = [(start, start + 1, start + 2) for start in starts]
    assert p_value_of_equally_likely_sets(windows, records=7, size=3) < 1e-6


@pytest.mark.parametrize("records, size", [(10, 1), (10, 5), (10, 9), (10, 10), (100_000, 777), (5000, 4990)])
def test_a_draw_has_exactly_the_size_and_is_sorted(records: int, size: int) -> None:
    places = WithoutReplacement(size, records).draw(records, KEY.at(step=3, attempt=0))
    assert len(places) == size
    assert (places.diff() > 0).all()
    assert ((places >= 0) & (places < records)).all()


def test_repeated_places_are_passed_over_until_there_are_enough() -> None:
    few = chosen(0.05, 0.05, *[0.05] * 60, 0.95, 0.55, 0.15)
    assert without_replacement._distinct(3, 10, few, "sampling").tolist() == [0, 9, 5]


def test_the_largest_uniform_number_gives_the_last_place() -> None:
    assert without_replacement._distinct(1, 3, chosen(1 - 2.0**-53), "sampling").tolist() == [2]


def test_the_event_measures_the_noise_by_a_record_replaced() -> None:
    sampling = WithoutReplacement(sample_size=10, records=100)
    assert sampling.event(Gaussian(3.0)) == SampledWithoutReplacement(100, 10, Gaussian(1.5))
    assert sampling.adjacency is Adjacency.REPLACE_ONE
    assert sampling.sampling_probability == 0.1
    assert sampling.expected_batch_size == 10
    assert sampling.event(Gaussian(0.0)) == SampledWithoutReplacement(100, 10, Gaussian(0.0))


@pytest.mark.parametrize("num_held", [0, 99, 101])
def test_another_number_of_records_than_stated_is_refused(num_held: int) -> None:
    with pytest.raises(InvalidValue, match="num_held must be exactly the 100"):
        WithoutReplacement(10, 100).draw(num_held, KEY.at(step=0, attempt=0))


@pytest.mark.parametrize("sample_size, records", [(0, 5), (6, 5), (2.5, 5), (math.nan, 5), (1, 0), (True, 5)])
def test_a_sample_that_is_none_is_refused(sample_size: int, records: int) -> None:
    with pytest.raises(InvalidValue):
        WithoutReplacement(sample_size=sample_size, records=records)


def test_a_draw_can_be_had_without_those_before_it() -> None:
    sampling = WithoutReplacement(10, 100)
    forwards = [sampling.draw(100, KEY.at(step=step, attempt=0)) for step in range(5)]
    backwards = [sampling.draw(100, KEY.at(step=step, attempt=0)) for step in reversed(range(5))]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
