"""A simulation keeps the noise of a step for each record of its batch, and says what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, RenyiLimit
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate, simulation_words

REFERENCE = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)


@pytest.mark.parametrize("batch", [64, 100.5, 512, 4095])
def test_noise_per_record_of_the_batch_and_steps_stay_as_they_are(batch: float) -> None:
    cheap = simulate(REFERENCE, expected_batch_size=batch)
    per_step = REFERENCE.sampling_probability / REFERENCE.noise_multiplier
    assert cheap.sampling_probability / cheap.noise_multiplier == pytest.approx(per_step, rel=1e-12)
    assert (cheap.steps, cheap.records, cheap.delta) == (REFERENCE.steps, REFERENCE.records, REFERENCE.delta)
    assert cheap.simulates == REFERENCE


def test_its_own_epsilon_is_counted_and_not_that_of_the_plan_it_stands_for() -> None:
    assert REFERENCE.bound().epsilon < 7
    assert simulate(REFERENCE, expected_batch_size=512).bound().epsilon > 50


@pytest.mark.parametrize("batch", [4096, 5000, 0, -1, float("nan"), "512"])
def test_a_batch_that_is_not_smaller_is_refused(batch: float) -> None:
    with pytest.raises(InvalidValue, match="expected_batch_size"):
        simulate(REFERENCE, expected_batch_size=batch)


@pytest.mark.parametrize(
    "plan",
    [
        simulate(REFERENCE, expected_batch_size=512),
        replace(REFERENCE, noise_multiplier=0.0),
        replace(REFERENCE, asked=Gaussian(5.0)),
        replace(REFERENCE, stops_at_accepted=10),
        replace(REFERENCE, limit=RenyiLimit(2.0, 1.0)),
        replace(REFERENCE, adjacency=Adjacency.REPLACE_ONE),
    ],
)
def test_what_the_law_is_not_about_is_refused(plan: Plan) -> None:
    with pytest.raises(InvalidValue):
        simulate(plan, expected_batch_size=64)


def test_it_survives_its_json_form() -> None:
    cheap = simulate(REFERENCE, expected_batch_size=128)
    assert Plan.from_json(cheap.to_json()) == cheap


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 2.0}, {"steps": 10}, {"records": 60_000}, {"delta": 1e-6}, {"asked": Gaussian(2.0)}]
)
def test_no_plan_can_say_that_it_simulates_another_one_than_it_does(change: dict[str, float]) -> None:
    cheap = simulate(REFERENCE, expected_batch_size=128)
    with pytest.raises(InvalidValue, match="simulates"):
        replace(cheap, **change)  # type: ignore[arg-type]


def test_a_simulation_of_a_simulation_is_refused() -> None:
    cheap = simulate(REFERENCE, expected_batch_size=128)
    with pytest.raises(InvalidValue, match="no simulation itself"):
        replace(cheap, expected_batch_size=64, noise_multiplier=cheap.noise_multiplier / 2, simulates=cheap)


def test_words_name_both_plans() -> None:
    words = simulation_words(simulate(REFERENCE, expected_batch_size=128))
    assert "4,096" in words
    assert "128" in words
    assert "0.09375" in words
