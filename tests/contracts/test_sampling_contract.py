"""Contract of every sampler in ``lehr.privacy.sampling``: its event is what it draws."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

import lehr.privacy.sampling
from lehr.accounting.accountant import bound
from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    Gaussian,
    PoissonSampled,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
)
from lehr.privacy.noise import NoNoise
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import (
    BallsInBinsSampling,
    PoissonSampling,
    Sampling,
    TruncatedPoissonSampling,
    WithoutReplacement,
)
from tests.contracts.crawling import classes_of

RECORDS = 200
STEPS = 2000
KEY = RunKey(bytes(range(32)))
EXAMPLES: dict[type, tuple[Sampling, ...]] = {
    PoissonSampling: (PoissonSampling(20, RECORDS), PoissonSampling(0.5, RECORDS), PoissonSampling(180, RECORDS)),
    TruncatedPoissonSampling: (TruncatedPoissonSampling(20, RECORDS, 60), TruncatedPoissonSampling(180, RECORDS, 200)),
    BallsInBinsSampling: (BallsInBinsSampling(10, RECORDS), BallsInBinsSampling(3, RECORDS)),
    WithoutReplacement: (WithoutReplacement(20, RECORDS), WithoutReplacement(1, RECORDS)),
}
SAMPLERS = [
    pytest.param(sampling, id=f"{kind.__name__}-{index}")
    for kind, own in EXAMPLES.items()
    for index, sampling in enumerate(own)
]


def samplers_in_the_package() -> set[type]:
    return {kind for kind in classes_of(lehr.privacy.sampling) if "draw" in vars(kind)}


def stated_probability(sampling: Sampling) -> float:
    event: Any = sampling.event(Gaussian(1.0))
    if isinstance(event, SampledWithoutReplacement):
        return event.sample_size / event.records
    if isinstance(event, BallsInBins):
        return RECORDS / event.bins / RECORDS
    assert isinstance(event, PoissonSampled | TruncatedPoissonSampled)
    return event.sampling_probability


def deviation(sampling: Sampling, probability: float) -> float:
    """How far the number of records drawn in many steps is from what the probability says, in standard deviations."""
    drawn = sum(len(sampling.draw(RECORDS, KEY.at(step=step, attempt=0))) for step in range(STEPS))
    coins = RECORDS * STEPS
    return abs(drawn - coins * probability) / math.sqrt(coins * probability * (1 - probability))


def test_every_sampler_in_the_package_is_tried_here() -> None:
    assert samplers_in_the_package() == set(EXAMPLES)


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_records_are_drawn_with_the_probability_of_the_event(sampling: Sampling) -> None:
    assert stated_probability(sampling) == sampling.sampling_probability
    assert deviation(sampling, stated_probability(sampling)) < 4


@pytest.mark.parametrize("sampling", SAMPLERS)
@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_an_event_with_another_probability_is_found_out(sampling: Sampling, factor: float) -> None:
    chance = factor * stated_probability(sampling)
    assert deviation(sampling, chance if chance < 1 else 0.99) > 4.5


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_the_expected_batch_is_the_probability_of_all_records(sampling: Sampling) -> None:
    assert sampling.sampling_probability == sampling.expected_batch_size / sampling.records


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_a_sampler_is_counted_by_an_accountant_under_its_own_adjacency(sampling: Sampling) -> None:
    event = sampling.event(Gaussian(4.0))
    assert 0 < bound(event, delta=1e-5, adjacency=sampling.adjacency).epsilon < 10


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_the_noise_of_the_event_is_measured_under_its_adjacency(sampling: Sampling) -> None:
    factor = 2 if sampling.adjacency is Adjacency.REPLACE_ONE else 1
    assert sampling.sensitivity_factor == factor
    event: Any = sampling.event(Gaussian(3.0 * factor))
    assert event.event == Gaussian(3.0)


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_what_has_no_noise_is_not_made_private_by_sampling(sampling: Sampling) -> None:
    event = sampling.event(NoNoise().event())
    assert bound(event, delta=1e-5, adjacency=sampling.adjacency).epsilon == math.inf


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_two_purposes_of_a_step_have_draws_of_their_own(sampling: Sampling) -> None:
    """A draw for a question must not be that of the gradient."""

    def drawn(**given: Any) -> list[list[int]]:
        return [sampling.draw(RECORDS, KEY.at(step=step, attempt=0), **given).tolist() for step in range(40)]

    assert drawn(purpose="energy") != drawn(purpose="sampling")
    assert drawn(purpose="sampling") == drawn()


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_places_are_distinct_sorted_whole_numbers(sampling: Sampling) -> None:
    for step in range(30):
        places = sampling.draw(RECORDS, KEY.at(step=step, attempt=0))
        assert places.dtype == torch.int64
        assert places.tolist() == sorted(set(places.tolist()))
        assert all(0 <= place < RECORDS for place in places.tolist())


@pytest.mark.parametrize("sampling", SAMPLERS)
def test_a_sampler_is_frozen_and_can_be_a_key(sampling: Any) -> None:
    assert {sampling: 1}[sampling] == 1
    for field in dataclasses.fields(sampling):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(sampling, field.name, 1)
