"""Samplers by name, and the one that is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lehr.accounting.events import Adjacency, Gaussian, SampledWithoutReplacement
from lehr.errors import InvalidValue
from lehr.privacy import sampling
from lehr.privacy.sampling import (
    PoissonSampling,
    WithoutReplacement,
    adjacency_of,
    counted_under,
    physical,
)
from tests.privacy.sampling.laws import KEY
from tests.privacy.sampling.test_poisson import chosen


def test_each_sampling_has_its_adjacency_and_each_adjacency_its_sampling() -> None:
    assert adjacency_of("poisson") is Adjacency.ADD_OR_REMOVE_ONE
    assert adjacency_of("without-replacement") is Adjacency.REPLACE_ONE


def test_the_sampler_of_an_adjacency_is_the_one_that_is_counted_under_it() -> None:
    for adjacency in Adjacency:
        sampler = counted_under(adjacency, expected_batch_size=2.0, records=10)
        assert sampler.adjacency is adjacency
    poisson = counted_under(Adjacency.ADD_OR_REMOVE_ONE, expected_batch_size=2.5, records=10)
    assert poisson == PoissonSampling(2.5, 10)
    assert counted_under(Adjacency.REPLACE_ONE, expected_batch_size=2.0, records=10) == WithoutReplacement(2, 10)


@pytest.mark.parametrize("name", ["shuffled", "shuffle", "epochs", "shuffled-epochs"])
def test_shuffled_epochs_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidValue, match="shuffled epochs have no accountant"):
        adjacency_of(name)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidValue, match="one of poisson, without-replacement; given: 'stratified'"):
        adjacency_of("stratified")


@pytest.mark.parametrize("size", [2.5, float("inf"), float("nan")])
def test_without_replacement_the_batch_is_a_whole_number(size: float) -> None:
    with pytest.raises(InvalidValue, match="whole number"):
        counted_under(Adjacency.REPLACE_ONE, expected_batch_size=size, records=10)


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
    assert sampling._distinct(3, 10, few, "sampling").tolist() == [0, 9, 5]


def test_the_largest_uniform_number_gives_the_last_place() -> None:
    assert sampling._distinct(1, 3, chosen(1 - 2.0**-53), "sampling").tolist() == [2]


def test_the_event_measures_the_noise_by_a_record_replaced() -> None:
    sampling = WithoutReplacement(sample_size=10, records=100)
    assert sampling.event(Gaussian(3.0)) == SampledWithoutReplacement(100, 10, Gaussian(1.5))
    assert sampling.adjacency is Adjacency.REPLACE_ONE
    assert sampling.sampling_probability == 0.1
    assert sampling.expected_batch_size == 10
    assert sampling.event(Gaussian(0.0)) == SampledWithoutReplacement(100, 10, Gaussian(0.0))


@pytest.mark.parametrize("num_records", [0, 99, 101])
def test_another_number_of_records_than_stated_is_refused(num_records: int) -> None:
    with pytest.raises(InvalidValue, match="num_records must be exactly the 100"):
        WithoutReplacement(10, 100).draw(num_records, KEY.at(step=0, attempt=0))


@pytest.mark.parametrize("sample_size, records", [(0, 5), (6, 5), (2.5, 5), (math.nan, 5), (1, 0), (True, 5)])
def test_a_sample_that_is_none_is_refused(sample_size: int, records: int) -> None:
    with pytest.raises(InvalidValue):
        WithoutReplacement(sample_size=sample_size, records=records)


def test_a_draw_can_be_had_without_those_before_it() -> None:
    sampling = WithoutReplacement(10, 100)
    forwards = [sampling.draw(100, KEY.at(step=step, attempt=0)) for step in range(5)]
    backwards = [sampling.draw(100, KEY.at(step=step, attempt=0)) for step in reversed(range(5))]
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))


@given(places=st.lists(st.integers(0, 10**9), max_size=40, unique=True).map(sorted), size=st.integers(1, 12))
def test_the_masked_places_are_the_draw_and_every_batch_has_the_size(places: list[int], size: int) -> None:
    batches = physical(torch.tensor(places, dtype=torch.int64), size)
    assert [place for batch in batches for place in batch.indices_P[batch.mask_P].tolist()] == places
    assert all(batch.indices_P.shape == batch.mask_P.shape == (size,) for batch in batches)
    assert len(batches) == max(1, -(-len(places) // size))
    shorter = physical(torch.tensor(places, dtype=torch.int64), size, is_padded=False)
    assert [place for batch in shorter for place in batch.indices_P[batch.mask_P].tolist()] == places
    assert sum(len(batch.mask_P) for batch in shorter) == max(1, len(places))


@pytest.mark.parametrize("is_padded", [True, False])
def test_an_empty_draw_is_one_batch_of_padding(is_padded: bool) -> None:
    [batch] = physical(torch.empty(0, dtype=torch.int64), 8, is_padded=is_padded)
    assert len(batch.indices_P) == (8 if is_padded else 1)
    assert not batch.mask_P.any()


def test_padding_is_place_zero_so_that_it_can_be_fetched() -> None:
    [batch] = physical(torch.tensor([4, 9]), 5)
    assert batch.indices_P.tolist() == [4, 9, 0, 0, 0]
    assert batch.mask_P.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_size_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(InvalidValue, match="size"):
        physical(torch.tensor([1]), size)
