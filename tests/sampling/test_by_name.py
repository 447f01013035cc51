"""Samplers by name, and the one that is refused."""

from __future__ import annotations

import pytest

from lehr.errors import InvalidValue
from lehr.events import Adjacency
from lehr.sampling import PoissonSampling, WithoutReplacement, adjacency_of, counted_under
from lehr.sampling.by_name import SAMPLERS, name_of


def test_each_sampling_has_its_adjacency_and_each_adjacency_its_sampling() -> None:
    assert adjacency_of("poisson") is Adjacency.ADD_OR_REMOVE_ONE
    assert adjacency_of("without-replacement") is Adjacency.REPLACE_ONE
    assert [name_of(adjacency_of(name)) for name in SAMPLERS] == list(SAMPLERS)


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
