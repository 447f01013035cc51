"""A simulation, and a run on records that need no protection, promise nothing; every other run may."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from lehr.errors import InvalidValue
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports.promising import check_delta, largest_delta, why_nothing
from lehr.run_shape import DECLARED, PRIVATE

PLAN = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)


def test_a_run_on_private_records_may_promise_something() -> None:
    assert why_nothing(PLAN, declared=PRIVATE) is None


@pytest.mark.parametrize("declared", [word for word in DECLARED if word != PRIVATE])
def test_records_that_need_no_protection_are_promised_nothing(declared: str) -> None:
    assert why_nothing(PLAN, declared=declared) == f"the records that it is trained on were declared {declared}"


@pytest.mark.parametrize("declared", DECLARED)
def test_a_simulation_promises_nothing_and_says_its_own_epsilon(declared: str) -> None:
    cheap = simulate(PLAN, expected_batch_size=32)
    words = why_nothing(cheap, declared=declared)
    assert words is not None
    assert words.startswith("it is a simulation of batches of 256")
    assert float(words.rpartition(" ")[2]) >= cheap.bound().epsilon


def test_a_delta_that_is_too_large_promises_nothing() -> None:
    assert why_nothing(replace(PLAN, delta=largest_delta(PLAN.records)), declared=PRIVATE) is None
    words = why_nothing(replace(PLAN, delta=0.1), declared=PRIVATE)
    assert words is not None
    assert "the largest that is certified for 1,464 records" in words


@pytest.mark.parametrize("delta, warns, refuses", [(1e-4, False, False), (1e-3, True, False), (0.01, True, True)])
def test_a_large_delta_is_warned_of_and_refused_for_a_certificate(delta: float, warns: bool, refuses: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_delta(delta, records=1464, is_certified=False)
    assert bool(caught) is warns
    if refuses:
        with pytest.raises(InvalidValue, match="delta must be at most"):
            check_delta(delta, records=1464, is_certified=True)
