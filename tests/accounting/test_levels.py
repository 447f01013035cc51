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
from lehr.accounting.levels import MOST_LEVELS, with_fewer_levels
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


def _schedule(sigmas: NDArray[np.floating]) -> Event:
    return Composed(tuple(PoissonSampled(PROBABILITY, Gaussian(sigma)) for sigma in sigmas.tolist()))


def _exact(sigmas: NDArray[np.floating], delta: float) -> float:
    """Every level by itself; removing a record is the worse direction here."""
    parts = [
        (
            SampledGaussianLoss(
                sampling_probability=PROBABILITY, noise_multiplier=s, direction=Direction.REMOVE, delta=delta
            ),
            1,
        )
        for s in sigmas.tolist()
    ]
    return compose_by_transform(parts, delta=delta, tolerance=1e-3, fewest=1, most=1)(1)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(SCHEDULES, always=["half a cosine"]))
def test_a_schedule_of_300_levels_costs_no_less_than_exactly_and_at_most_a_percent_more(name: str) -> None:
    found = PldAccountant(tolerance=1e-3).epsilon(_schedule(SCHEDULES[name]), delta=1e-5, adjacency=ADD_OR_REMOVE)
    exact = _exact(SCHEDULES[name], 1e-5)
    assert exact * (1 - 2e-4) <= found <= exact * 1.01  # the grids differ by a little


def test_pld_counts_a_schedule_between_its_most_and_its_least_noise() -> None:
    sigmas = np.linspace(1.3, 1.2, 150)
    found = PldAccountant(tolerance=1e-3).epsilon(_schedule(sigmas), delta=1e-5, adjacency=ADD_OR_REMOVE)
    low, high = (
        PLD.epsilon(Repeated(PoissonSampled(PROBABILITY, Gaussian(sigma)), 150), delta=1e-5, adjacency=ADD_OR_REMOVE)
        for sigma in (1.3, 1.2)
    )
    assert low < found < high
    assert found == pytest.approx((low + high) / 2, rel=0.02)


def test_the_renyi_divergence_of_a_schedule_is_the_sum_over_its_steps_rounded_up_by_little() -> None:
    sigmas, orders = np.linspace(2.0, 0.8, 150), (2.0, 5.0, 16.0)
    found = renyi_divergences(_schedule(sigmas), orders, ADD_OR_REMOVE)
    exact = [math.fsum(_divergence_at_whole_order(int(order), sigma) for sigma in sigmas.tolist()) for order in orders]
    assert (found >= np.array(exact)).all()
    assert found == pytest.approx(exact, rel=0.02)


def _divergence_at_whole_order(order: int, sigma: float) -> float:
    """The binomial sum of Mironov, Talwar & Zhang (2019)."""
    terms = (
        math.comb(order, k)
        * (1 - PROBABILITY) ** (order - k)
        * PROBABILITY**k
        * math.expm1(k * (k - 1) / (2 * sigma**2))
        for k in range(2, order + 1)
    )
    return math.log1p(math.fsum(terms)) / (order - 1)


_ways = st.sampled_from([0.001, 0.01, 1.0])
_sigmas = st.floats(0, 1e308)
_poisson = st.builds(lambda way, sigma: PoissonSampled(way, Gaussian(sigma)), _ways, _sigmas)
_drawn = st.builds(
    lambda size, sigma: SampledWithoutReplacement(100, size, Gaussian(sigma)), st.integers(1, 2), _sigmas
)
_others = st.one_of(st.builds(Gaussian, _sigmas), st.builds(PureDP, st.floats(0, 10)))


@settings(max_examples=200)
@given(st.dictionaries(st.one_of(_poisson, _drawn, _others), st.integers(1, 10**6), max_size=40), st.integers(5, 20))
def test_steps_only_ever_lose_noise_and_none_is_lost(counts: dict[Atom, int], most: int) -> None:
    fewer = with_fewer_levels(counts, most=most)
    sampled = [atom for atom in fewer if isinstance(atom, PoissonSampled | SampledWithoutReplacement)]
    assert len(sampled) <= most
    assert sum(fewer.values()) == sum(counts.values())
    assert set(fewer) <= set(counts)
    for threshold in sampled:  # of no sampling are there fewer steps at or below any level than before
        assert _at_or_below(threshold, fewer) >= _at_or_below(threshold, counts)
    assert {atom: count for atom, count in fewer.items() if atom not in sampled} == {
        atom: count
        for atom, count in counts.items()
        if not isinstance(atom, PoissonSampled | SampledWithoutReplacement)
    }


def _at_or_below(level: PoissonSampled | SampledWithoutReplacement, counts: dict[Atom, int]) -> int:
    def same_way(atom: Atom) -> bool:
        if isinstance(atom, PoissonSampled) and isinstance(level, PoissonSampled):
            return atom.sampling_probability == level.sampling_probability
        if isinstance(atom, SampledWithoutReplacement) and isinstance(level, SampledWithoutReplacement):
            return atom.sample_size == level.sample_size
        return False

    return sum(
        count
        for atom, count in counts.items()
        if isinstance(atom, PoissonSampled | SampledWithoutReplacement)
        and same_way(atom)
        and atom.event.noise_multiplier <= level.event.noise_multiplier
    )


def test_few_levels_are_left_as_they_are() -> None:
    counts: dict[Atom, int] = {PoissonSampled(0.01, Gaussian(1 + i / 100)): i + 1 for i in range(MOST_LEVELS)}
    assert with_fewer_levels(counts) == counts


def test_a_schedule_that_ends_without_noise_costs_infinitely_much() -> None:
    event = Composed(tuple(PoissonSampled(0.01, Gaussian(i / 100)) for i in range(150)))
    assert bound(event, delta=1e-5).epsilon == math.inf


def test_a_multiple_of_a_schedule_is_rounded_at_the_same_places() -> None:
    sigmas = SCHEDULES["half a cosine"]
    kept = [
        [sigmas.tolist().index(level.event.noise_multiplier / scale) for level in _levels_of(sigmas * scale)]
        for scale in (1.0, 2.0, 0.5)
    ]
    assert kept[0] == kept[1] == kept[2]
    near = [len(_levels_of(sigmas * scale)) for scale in (1.0, 1.1, 1.2345)]
    assert len(set(near)) == 1


def _levels_of(sigmas: NDArray[np.floating]) -> list[PoissonSampled]:
    fewer = with_fewer_levels({PoissonSampled(PROBABILITY, Gaussian(sigma)): 1 for sigma in sigmas.tolist()})
    return [atom for atom in fewer if isinstance(atom, PoissonSampled)]
