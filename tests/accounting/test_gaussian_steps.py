"""Which events are made of Gaussian steps."""

from __future__ import annotations

import pytest

from lehr.accounting.gaussian_steps import GaussianStep, gaussian_steps
from lehr.errors import UnsupportedEvent
from lehr.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


def test_a_gaussian_step_is_a_sampled_one_with_probability_one() -> None:
    event = Composed(
        (Gaussian(2.0), Repeated(PoissonSampled(1.0, Gaussian(2.0)), 4), PoissonSampled(0.5, Gaussian(2.0)))
    )
    steps = gaussian_steps(event, adjacency=ADD_OR_REMOVE, accountant="x")
    assert steps == {GaussianStep(1.0, 2.0): 5, GaussianStep(0.5, 2.0): 1}


def test_a_release_without_noise_is_a_step_without_noise() -> None:
    steps = gaussian_steps(NonPrivate("raw"), adjacency=ADD_OR_REMOVE, accountant="x")
    assert steps == {GaussianStep(1.0, 0.0): 1}


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1.0),
        PureDP(0.1),
        SampledWithoutReplacement(10, 2, Gaussian(1.0)),
        RepeatAndSelect(Gaussian(1.0), mean=2.0),
    ],
)
def test_anything_else_is_refused_by_name(event: Event) -> None:
    with pytest.raises(UnsupportedEvent, match=r"'pld' cannot count .*Gaussian noise only") as caught:
        gaussian_steps(Composed((Gaussian(1.0), event)), adjacency=ADD_OR_REMOVE, accountant="pld")
    assert caught.value.event == event


def test_poisson_sampling_is_refused_under_replace_one() -> None:
    with pytest.raises(UnsupportedEvent, match="add-or-remove-one only"):
        gaussian_steps(PoissonSampled(0.5, Gaussian(1.0)), adjacency=Adjacency.REPLACE_ONE, accountant="pld")
