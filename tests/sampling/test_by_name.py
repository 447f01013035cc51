"""Samplers by name, and the one that is refused."""

from __future__ import annotations

import pytest

from lehr.errors import InvalidValue
from lehr.sampling import PoissonSampling, WithoutReplacement, named


def test_the_names_lead_to_the_samplers() -> None:
    assert named("poisson", expected_batch_size=2.5, records=10) == PoissonSampling(2.5, 10)
    assert named("without-replacement", expected_batch_size=2.0, records=10) == WithoutReplacement(2, 10)


@pytest.mark.parametrize("name", ["shuffled", "shuffle", "epochs", "shuffled-epochs"])
def test_shuffled_epochs_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(InvalidValue, match="shuffled epochs have no accountant"):
        named(name, expected_batch_size=2, records=10)


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidValue, match="one of poisson, without-replacement; given: 'stratified'"):
        named("stratified", expected_batch_size=2, records=10)


@pytest.mark.parametrize("size", [2.5, float("inf"), float("nan")])
def test_without_replacement_the_batch_is_a_whole_number(size: float) -> None:
    with pytest.raises(InvalidValue, match="whole number"):
        named("without-replacement", expected_batch_size=size, records=10)
