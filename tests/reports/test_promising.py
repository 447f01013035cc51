"""A simulation, and a run on records that need no protection, promise nothing; every other run may."""

from __future__ import annotations

import pytest

from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports.promising import why_nothing
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
