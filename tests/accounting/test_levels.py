"""Schedules of very many noise levels: fewer levels, never more noise, and ε within a percent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lehr.accounting.accountant import bound
from lehr.accounting.composition import compose_by_transform
from lehr.accounting.events import (
    Adjacency,
    Atom,
    Composed,
    Event,
    Gaussian,
    PoissonSampled,
    PureDP,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.accounting.levels import MOST_LEVELS, Sampled, with_fewer_levels
from lehr.accounting.pld import PLD, PldAccountant
from lehr.accounting.privacy_loss import Direction, SampledGaussianLoss
from lehr.accounting.rdp import renyi_divergences
from tests.sizes import cases

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE
PROBABILITY = 0.01
SCHEDULES = {
    "falling in a line": np.linspace(2.0, 0.8, 300),
    "falling by a factor": 8 * 0.993 ** np.arange(300),
    "half a cosine": 1.5 + 0.7 * np.cos(np.pi * np.arange(300) / 300),
}


def schedule(sigmas: NDArray[np.floating]) -> Event:
    return Composed(tuple(PoissonSampled(PROBABILITY, Gaussian(sigma)) for sigma in sigmas.tolist()))


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(SCHEDULES, always=["half a cosine"]))
def test_a_schedule_of_300_levels_costs_no_less_than_exactly_and_at_most_a_percent_more(name: str) -> None:
    found = PldAccountant(tolerance=1e-3).epsilon(schedule(SCHEDULES[name]), delta=1e-5, adjacency=ADD_OR_REMOVE)
    # Every level by itself; removing a record is the worse direction here.
    losses = [
        SampledGaussianLoss(
            sampling_probability=PROBABILITY, noise_multiplier=sigma, direction=Direction.REMOVE, delta=1e-5
        )
        for sigma in SCHEDULES[name].tolist()
    ]
    exact = compose_by_transform([(loss, 1) for loss in losses], delta=1e-5, tolerance=1e-3, fewest=1, most=1)(1)
    assert exact * (1 - 2e-4) <= found <= exact * 1.01  # the grids differ by a little


def test_pld_counts_a_schedule_between_its_most_and_its_least_noise() -> None:
    found = PldAccountant(tolerance=1e-3).epsilon(
        schedule(np.linspace(1.3, 1.2, 150)), delta=1e-5, adjacency=ADD_OR_REMOVE
    )
    low, high = (
        PLD.epsilon(Repeated(PoissonSampled(PROBABILITY, Gaussian(sigma)), 150), delta=1e-5, adjacency=ADD_OR_REMOVE)
        for sigma in (1.3, 1.2)
    )
    assert low < found < high
    assert found == pytest.approx((low + high) / 2, rel=0.02)


def test_the_renyi_divergence_of_a_schedule_is_the_sum_over_its_steps_rounded_up_by_little() -> None:
    def divergence(order: int, sigma: float) -> float:
        """The binomial sum of Mironov, Talwar & Zhang (2019)."""
        q = PROBABILITY
        weights = (math.comb(order, k) * (1 - q) ** (order - k) * q**k for k in range(2, order + 1))
        excesses = (math.expm1(k * (k - 1) / (2 * sigma**2)) for k in range(2, order + 1))
        return math.log1p(sum(w * e for w, e in zip(weights, excesses, strict=True))) / (order - 1)

    sigmas, orders = np.linspace(2.0, 0.8, 150), (2, 5, 16)
    found = renyi_divergences(schedule(sigmas), tuple(map(float, orders)), ADD_OR_REMOVE, only_these=True)
    exact = [math.fsum(divergence(order, sigma) for sigma in sigmas.tolist()) for order in orders]
    assert (found >= np.array(exact)).all()
    assert found == pytest.approx(exact, rel=0.02)


_sigmas = st.floats(0, 1e308)
_atoms = st.one_of(
    st.builds(lambda way, sigma: PoissonSampled(way, Gaussian(sigma)), st.sampled_from([0.001, 0.01, 1.0]), _sigmas),
    st.builds(lambda size, s: SampledWithoutReplacement(100, size, Gaussian(s)), st.integers(1, 2), _sigmas),
    st.builds(Gaussian, _sigmas),
    st.builds(PureDP, st.floats(0, 10)),
)


@settings(max_examples=200)
@given(st.dictionaries(_atoms, st.integers(1, 10**6), max_size=40), st.integers(5, 20))
def test_steps_only_ever_lose_noise_and_none_is_lost(counts: dict[Atom, int], most: int) -> None:
    def at_or_below(level: Sampled, counts: dict[Atom, int]) -> int:
        """The steps of the same sampling with no more noise."""
        way = str(level).partition("Gaussian")[0]
        return sum(
            count
            for atom, count in counts.items()
            if isinstance(atom, Sampled)
            and str(atom).partition("Gaussian")[0] == way
            and atom.event.noise_multiplier <= level.event.noise_multiplier
        )

    fewer = with_fewer_levels(counts, most=most)
    sampled = [atom for atom in fewer if isinstance(atom, Sampled)]
    assert len(sampled) <= most
    assert sum(fewer.values()) == sum(counts.values())
    assert set(fewer) <= set(counts)
    assert all(at_or_below(level, fewer) >= at_or_below(level, counts) for level in sampled)
    for atom in counts:
        assert isinstance(atom, Sampled) or fewer[atom] == counts[atom]


def test_few_levels_are_left_as_they_are() -> None:
    counts: dict[Atom, int] = {PoissonSampled(0.01, Gaussian(1 + i / 100)): i + 1 for i in range(MOST_LEVELS)}
    assert with_fewer_levels(counts) == counts


def test_a_schedule_that_ends_without_noise_costs_infinitely_much() -> None:
    assert bound(schedule(np.arange(150) / 100), delta=1e-5).epsilon == math.inf


def test_a_multiple_of_a_schedule_is_rounded_at_the_same_levels() -> None:
    def levels(scale: float) -> list[float]:
        steps: dict[Atom, int] = {PoissonSampled(PROBABILITY, Gaussian(sigma * scale)): 1 for sigma in sigmas}
        return [atom.event.noise_multiplier / scale for atom in with_fewer_levels(steps) if isinstance(atom, Sampled)]

    sigmas = SCHEDULES["half a cosine"].tolist()
    assert levels(1.0) == levels(2.0) == levels(0.5)
    assert len(levels(1.0)) == len(levels(1.1)) == len(levels(1.2345))
