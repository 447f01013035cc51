"""Numbers that a stranger's file may hold: an answer or a named refusal, never a crash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from lehr.accounting.accountant import answers, bound
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)

TINY, HUGE = 5e-324, 1.7e308
NOISE = (0.0, TINY, 1e-200, 1e-4, 0.05, 1e7, 1e200, HUGE)
EVENTS: list[Event] = [
    *(Gaussian(noise) for noise in NOISE),
    *(Laplace(noise) for noise in NOISE),
    *(PureDP(epsilon) for epsilon in NOISE),
    *(PoissonSampled(p, Gaussian(noise)) for p, noise in itertools.product((TINY, 1e-100, 1e-10, 1.0), NOISE)),
]


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("count", [1, 10**18])
def test_every_number_that_is_allowed_has_an_answer(event: Event, count: int) -> None:
    for delta in (TINY, 1e-5, 1 - 1e-16):
        assert bound(Repeated(event, count), delta=delta).epsilon >= 0
        for answer in answers(Repeated(event, count), delta=delta):
            assert answer.reason if answer.epsilon is None else answer.epsilon >= 0


def test_a_selection_of_an_extreme_event_has_an_answer() -> None:
    for inner in (Gaussian(HUGE), PureDP(0.0), PureDP(TINY), PureDP(HUGE)):
        assert bound(RepeatAndSelect(inner, mean=1e300), delta=1e-5).epsilon >= 0


@pytest.mark.parametrize("epsilon", [0.0, TINY, 1e-8, 0.1, 30.0, 499.0, 501.0, HUGE])
def test_a_pure_mechanism_beside_gaussian_steps_has_an_answer(epsilon: float) -> None:
    event = Composed((PureDP(epsilon), Repeated(PoissonSampled(0.01, Gaussian(1.0)), 10), Gaussian(3.0)))
    alone = bound(Composed(event.events[1:]), delta=1e-5).epsilon
    found = bound(event, delta=1e-5).epsilon
    assert alone * 0.9999 <= found
    assert found <= (alone + epsilon) * 1.0001 + (1 if epsilon > 500 else 0) or epsilon == HUGE


def test_narrow_number_types_give_the_same_answer_and_spoil_no_later_one() -> None:
    probability, sigma = np.float32(1e-4), np.float32(0.5)
    wide = Repeated(PoissonSampled(float(probability), Gaussian(float(sigma))), 10**6)
    narrow = Repeated(PoissonSampled(probability, Gaussian(sigma)), np.int32(10**6))  # type: ignore[arg-type]
    delta = float(np.float32(1e-6))
    expected = bound(wide, delta=delta).epsilon
    assert bound(narrow, delta=np.float32(1e-6)).epsilon == expected  # type: ignore[arg-type]
    assert bound(wide, delta=delta).epsilon == expected


def test_without_replacement_very_much_noise_has_an_answer() -> None:
    event = Repeated(SampledWithoutReplacement(10**7, 1, Gaussian(1e300)), 10**7)
    assert bound(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE).epsilon >= 0


@pytest.mark.parametrize("delta", [1 - 1e-12, 1 - 1e-15, 0.9])
def test_a_delta_near_one_has_an_answer(delta: float) -> None:
    assert bound(Repeated(PoissonSampled(0.9, Gaussian(0.5)), 3), delta=delta).epsilon >= 0


def test_a_step_that_loses_much_beside_one_that_loses_little_is_counted_tightly() -> None:
    event = Composed((Gaussian(0.3), PoissonSampled(1e-6, Gaussian(5.0))))
    both, alone = bound(event, delta=1e-12), bound(Gaussian(0.3), delta=1e-12)
    assert both.accountant == "pld"
    assert alone.epsilon <= both.epsilon <= alone.epsilon * 1.001
