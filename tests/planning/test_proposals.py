from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.planning.plan import Plan
from lehr.planning.proposals import (
    NEARLY,
    Proposal,
    best_for_its_cost,
    cheapest_nearly_as_good,
    other_batches,
    other_steps,
    twice_the_data,
)
from lehr.planning.tan import largest_signal, total_noise

PLAN = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
EPSILON = PLAN.bound().epsilon


def plan_of(row: Proposal) -> Plan:
    return replace(
        PLAN, noise_multiplier=row.noise_multiplier, expected_batch_size=row.expected_batch_size, steps=row.steps
    )


@pytest.fixture(scope="module")
def batches() -> tuple[Proposal, ...]:
    return tuple(other_batches(PLAN, epsilon=EPSILON))


@pytest.fixture(scope="module")
def steps() -> tuple[Proposal, ...]:
    return tuple(other_steps(PLAN, epsilon=EPSILON))


def test_no_proposal_costs_more_than_the_plan(batches: tuple[Proposal, ...], steps: tuple[Proposal, ...]) -> None:
    assert len(batches) == 6
    assert len(steps) == 3
    for row in (*batches, *steps):
        assert 0.999 * EPSILON <= plan_of(row).bound().epsilon <= EPSILON
        assert plan_of(row).bound().epsilon == pytest.approx(row.epsilon)


def test_the_plan_is_among_its_batches_as_it_is(batches: tuple[Proposal, ...]) -> None:
    [own] = [row for row in batches if row.is_plan]
    assert plan_of(own) == PLAN
    assert (own.signal_gain, own.cost_factor, own.learning_rate_factor) == (0, 1, 1)
    assert own.gain_per_cost is None


def test_a_larger_batch_has_more_signal_and_less_of_the_wall_but_never_passes_the_largest(
    batches: tuple[Proposal, ...],
) -> None:
    signals = [row.signal for row in batches]
    assert signals == sorted(signals)
    assert signals[-1] <= largest_signal(epsilon=EPSILON, delta=PLAN.delta) * 1.001
    assert [row.is_behind_wall for row in batches] == [True, True, False, False, False, False]


def test_cost_is_the_records_looked_at(batches: tuple[Proposal, ...], steps: tuple[Proposal, ...]) -> None:
    for row in (*batches, *steps):
        assert row.cost == row.expected_batch_size * row.steps
        assert row.cost_factor == pytest.approx(row.cost / (4096 * 2500))
        assert row.signal == pytest.approx(total_noise(plan_of(row)).signal)


def test_other_steps_keep_eta_and_turn_the_learning_rate_the_other_way(steps: tuple[Proposal, ...]) -> None:
    for row in steps:
        assert row.signal == pytest.approx(total_noise(PLAN).signal, rel=0.02)
        assert row.learning_rate_factor == pytest.approx(2500 / row.steps)
    assert [(row.steps, row.expected_batch_size) for row in steps] == [(156, 16_397), (625, 8192), (10_000, 2048)]


def test_the_papers_step_from_72_to_18_thousand_steps_quadruples_the_learning_rate() -> None:
    imagenet = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_281_167, steps=72_000, delta=8e-7)
    fewer = next(row for row in other_steps(imagenet) if row.steps == 18_000)
    assert fewer.expected_batch_size == 32_768
    assert fewer.learning_rate_factor == 4  # from 8 to 32 in the paper's Table 4
    assert fewer.noise_multiplier == pytest.approx(2.5, rel=0.01)


def test_twice_the_data_halves_epsilon_or_more(batches: tuple[Proposal, ...]) -> None:
    same_batch, same_rate, same_epsilon = twice_the_data(PLAN, epsilon=EPSILON)
    assert same_batch.epsilon < EPSILON / 2
    assert (same_batch.expected_batch_size, same_batch.cost_factor) == (4096, 1)
    assert same_rate.epsilon > EPSILON  # half the δ, and nothing else
    assert (same_rate.expected_batch_size, same_rate.cost_factor) == (8192, 2)
    assert same_epsilon.noise_multiplier < PLAN.noise_multiplier
    assert 0.999 * EPSILON <= same_epsilon.epsilon <= EPSILON
    assert {row.records for row in (same_batch, same_rate, same_epsilon)} == {100_000}
    assert {row.delta for row in (same_batch, same_rate, same_epsilon)} == {5e-6}


def test_the_best_for_its_cost_wins_most_signal_for_each_share_of_cost(batches: tuple[Proposal, ...]) -> None:
    best = best_for_its_cost(batches)
    assert best is not None
    assert best.expected_batch_size == 8192
    assert best.gain_per_cost == max(row.gain_per_cost for row in batches if row.gain_per_cost is not None)


def test_where_every_record_takes_part_already_no_batch_is_better() -> None:
    full = Plan(noise_multiplier=40.0, expected_batch_size=500, records=500, steps=1, delta=1e-5)
    rows = tuple(other_batches(full))
    assert max(row.expected_batch_size for row in rows) == 500
    assert best_for_its_cost(rows) is None
    cheaper = cheapest_nearly_as_good(rows)
    assert cheaper is not None
    assert cheaper.expected_batch_size == 250
    assert cheaper.signal_gain >= -NEARLY


def test_where_every_cheaper_batch_loses_much_none_is_called_nearly_as_good(batches: tuple[Proposal, ...]) -> None:
    assert cheapest_nearly_as_good(batches) is None
