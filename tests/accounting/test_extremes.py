"""Numbers that a stranger's file may hold: an answer or a named refusal, never a crash."""

from __future__ import annotations

import itertools

import pytest

from lehr.accounting.accountant import answers, bound
from lehr.events import Event, Gaussian, Laplace, PoissonSampled, RepeatAndSelect, Repeated

TINY, HUGE = 5e-324, 1.7e308
NOISE = (0.0, TINY, 1e-200, 1e-4, 0.05, 1e7, 1e200, HUGE)
EVENTS: list[Event] = [
    *(Gaussian(noise) for noise in NOISE),
    *(Laplace(noise) for noise in NOISE),
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
    assert bound(RepeatAndSelect(Gaussian(HUGE), mean=1e300), delta=1e-5).epsilon >= 0
