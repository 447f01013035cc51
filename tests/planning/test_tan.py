"""The total amount of noise: a plan's η, other settings at its ε, and the paper's figures."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.events import Adjacency, Gaussian
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.planning.tan import (
    NEARLY,
    RATIO_ORDERS,
    EtaCurve,
    Proposal,
    TotalNoise,
    analyse,
    balle20_epsilon,
    best_for_its_cost,
    cheapest_nearly_as_good,
    deciding_order,
    estimated_epsilon,
    eta_curves,
    large_noise_epsilon,
    largest_signal,
    other_batches,
    other_steps,
    privacy_wall,
    ratio_curves,
    run_at,
    tan_outlook,
    tight_epsilon,
    total_noise,
    twice_the_data,
)
from lehr.schedules import StepDecay

IMAGENET = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_281_167, steps=72_000, delta=8e-7)
CIFAR10 = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
MNIST = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=7245, delta=1e-5)
# All four numbers of the paper's Table 6 are those of 1.275 million records and half of them.
TABLE_6 = replace(IMAGENET, records=1_275_000)


@pytest.mark.parametrize(
    "plan, paper, balle20, tan, pld",
    [
        (IMAGENET, 7.97, 7.954, 8.215, 7.465),
        (replace(IMAGENET, expected_batch_size=32_768, steps=18_000), 8.00, 7.980, 8.215, 7.486),
        (CIFAR10, 7.1, 7.10, 7.48, 6.58),
        (TABLE_6, 8.00, 8.00, 8.26, None),
        (replace(TABLE_6, records=637_500, delta=2 * TABLE_6.delta), 17.98, 17.98, 18.06, None),
    ],
)
def test_the_settings_of_the_paper_cost_what_every_accountant_is_known_to_say(
    plan: Plan, paper: float, balle20: float, tan: float, pld: float | None
) -> None:
    assert balle20_epsilon(plan.event, delta=plan.delta) == pytest.approx(balle20, abs=0.005)
    assert balle20_epsilon(plan.event, delta=plan.delta) == pytest.approx(paper, abs=0.03)
    assert estimated_epsilon(plan.event, delta=plan.delta) == pytest.approx(tan, abs=0.005)
    if pld is not None:
        assert tight_epsilon(plan.event, delta=plan.delta) == pytest.approx(pld, abs=0.005)


@pytest.mark.parametrize(
    "records, printed, counted", [(40_000, 7.3, 9.16), (25_000, 13.7, 16.3), (5_000, 150.3, 158.5)]
)
def test_three_rows_of_the_papers_table_of_data_sizes_do_not_reproduce(
    records: int, printed: float, counted: float
) -> None:
    plan = replace(CIFAR10, records=records, delta=CIFAR10.delta * CIFAR10.records / records)
    found = balle20_epsilon(plan.event, delta=plan.delta)
    assert found == pytest.approx(counted, rel=0.003)
    assert found != pytest.approx(printed, rel=0.05)


@pytest.mark.parametrize("eta, epsilon", [(0.13, 1.0), (0.95, 8.0)])
def test_the_two_etas_of_figure_2_give_the_estimates_that_the_paper_names(eta: float, epsilon: float) -> None:
    total = TotalNoise(eta_step=eta / 100, steps=10_000)
    assert estimated_epsilon(run_at(total, 2.5), delta=8e-7) == pytest.approx(epsilon, rel=0.01)


def test_eta_is_the_signal_of_a_record_over_the_noise_and_decides_the_estimate() -> None:
    total = total_noise(CIFAR10)
    assert total.eta_step == pytest.approx(4096 / 50_000 / (math.sqrt(2) * 3))
    assert total.eta**2 == pytest.approx((4096 / 50_000) ** 2 * 2500 / (2 * 3**2))
    assert total.total_noise * total.eta == pytest.approx(1)
    assert total.signal == pytest.approx(4096 / 50_000 * 50 / 3)
    assert total.sampling_probability(3.0) == pytest.approx(CIFAR10.sampling_probability)
    runs = [run_at(total, 1.5), run_at(total, 6.0), run_at(total, 3.0, steps=10_000)]
    assert len({round(estimated_epsilon(run, delta=1e-5), 9) for run in runs}) == 1


def test_no_setting_at_this_eta_is_cheaper_than_full_batches() -> None:
    total = total_noise(MNIST)
    limit = large_noise_epsilon(total.signal, delta=MNIST.delta)
    dearer = [bound(run_at(total, sigma), delta=MNIST.delta).epsilon for sigma in (1.0, 2.0, 4.0, 16.0)]
    assert dearer == sorted(dearer, reverse=True)
    assert dearer[-1] > limit
    full = math.sqrt(MNIST.steps) / total.signal
    assert bound(run_at(total, full), delta=MNIST.delta).epsilon == pytest.approx(limit, rel=1e-3)


@pytest.mark.parametrize("tolerance", [0.05, 0.5])
def test_epsilon_at_the_wall_is_above_the_limit_by_the_tolerance(tolerance: float) -> None:
    total = total_noise(MNIST)
    wall = privacy_wall(total, delta=MNIST.delta, tolerance=tolerance)
    assert wall is not None
    epsilon, limit = bound(run_at(total, wall), delta=MNIST.delta), large_noise_epsilon(total.signal, delta=MNIST.delta)
    assert 0.97 * tolerance < epsilon.epsilon / limit - 1 <= tolerance


def test_a_plan_stands_on_the_side_of_the_wall_that_its_noise_says() -> None:
    before, behind = analyse(CIFAR10), analyse(MNIST)
    for stands in (before, behind):
        assert stands.wall is not None
        assert stands.accountant == "pld"
        assert stands.is_clear_of_wall == (stands.noise_multiplier >= stands.wall)
    assert (before.is_clear_of_wall, behind.is_clear_of_wall) == (True, False)
    assert (before.is_estimate_fair, behind.is_estimate_fair) == (True, False)
    estimate = before.to_json()["epsilon_tan"]
    assert estimate == {
        "value": pytest.approx(7.4837, abs=1e-3),
        "standing": "an estimate, not a guarantee",
        "off": pytest.approx(0.1375, abs=1e-3),
    }


def test_the_largest_signal_is_that_of_one_gaussian_release() -> None:
    signal = largest_signal(epsilon=3.0, delta=1e-5)
    assert signal == pytest.approx(0.719, abs=0.001)
    gaussian = ACCOUNTANTS["pld"].epsilon(Gaussian(1 / signal), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert 3 * 0.999 < gaussian <= 3


def test_a_plan_with_hardly_any_noise_is_analysed_too() -> None:
    stands = analyse(Plan(noise_multiplier=1.0, expected_batch_size=500, records=500, steps=2000, delta=1e-5))
    assert stands.epsilon > 1000
    assert stands.share_of_ceiling == pytest.approx(1, abs=1e-3)
    assert stands.is_clear_of_wall  # full batches are the limit itself


@pytest.mark.parametrize(
    "plan, name",
    [
        (replace(MNIST, adjacency=Adjacency.REPLACE_ONE), "adjacency"),
        (replace(MNIST, steps=10, noise_schedule=StepDecay(every=5, decay=0.5)), "plan"),
        (replace(MNIST, asked=Gaussian(9.0)), "plan"),
        (replace(MNIST, noise_multiplier=0.0), "noise_multiplier"),
        (replace(MNIST, noise_multiplier=1e6, steps=1), "plan"),
    ],
)
def test_a_plan_without_a_total_amount_of_noise_is_refused(plan: Plan, name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        analyse(plan)
    assert error.value.name == name


# Other settings.

EPSILON = CIFAR10.bound().epsilon


@pytest.fixture(scope="module")
def batches() -> tuple[Proposal, ...]:
    return tuple(other_batches(CIFAR10, epsilon=EPSILON))


@pytest.fixture(scope="module")
def steps() -> tuple[Proposal, ...]:
    return tuple(other_steps(CIFAR10, epsilon=EPSILON))


def test_no_proposal_costs_more_than_the_plan(batches: tuple[Proposal, ...], steps: tuple[Proposal, ...]) -> None:
    assert (len(batches), len(steps)) == (6, 3)
    for row in (*batches, *steps):
        noise, batch = row.noise_multiplier, row.expected_batch_size
        plan = replace(CIFAR10, noise_multiplier=noise, expected_batch_size=batch, steps=row.steps)
        assert 0.999 * EPSILON <= plan.bound().epsilon <= EPSILON
        assert plan.bound().epsilon == pytest.approx(row.epsilon)


def test_a_larger_batch_has_more_signal_and_less_of_the_wall(batches: tuple[Proposal, ...]) -> None:
    signals = [row.signal for row in batches]
    assert signals == sorted(signals)
    assert signals[-1] <= largest_signal(epsilon=EPSILON, delta=CIFAR10.delta) * 1.001
    assert [row.is_behind_wall for row in batches] == [True, True, False, False, False, False]
    best = best_for_its_cost(batches)
    assert best is not None
    assert best.expected_batch_size == 8192
    assert best.gain_per_cost == max(row.gain_per_cost for row in batches if row.gain_per_cost is not None)


def test_other_steps_keep_eta_and_turn_the_learning_rate_the_other_way(steps: tuple[Proposal, ...]) -> None:
    for row in steps:
        assert row.signal == pytest.approx(total_noise(CIFAR10).signal, rel=0.02)
        assert row.learning_rate_factor == pytest.approx(2500 / row.steps)
    assert [(row.steps, row.expected_batch_size) for row in steps] == [(156, 16_397), (625, 8192), (10_000, 2048)]


def test_twice_the_data_halves_epsilon_or_more() -> None:
    same_batch, same_rate, same_epsilon = twice_the_data(CIFAR10, epsilon=EPSILON)
    assert same_batch.epsilon < EPSILON / 2
    assert (same_batch.expected_batch_size, same_batch.cost_factor) == (4096, 1)
    assert same_rate.epsilon > EPSILON  # half the δ, and nothing else
    assert (same_rate.expected_batch_size, same_rate.cost_factor) == (8192, 2)
    assert same_epsilon.noise_multiplier < CIFAR10.noise_multiplier
    assert 0.999 * EPSILON <= same_epsilon.epsilon <= EPSILON
    assert {(row.records, row.delta) for row in (same_batch, same_rate, same_epsilon)} == {(100_000, 5e-6)}


def test_with_full_batches_no_batch_is_better() -> None:
    full = Plan(noise_multiplier=40.0, expected_batch_size=500, records=500, steps=1, delta=1e-5)
    rows = tuple(other_batches(full, epsilon=full.bound().epsilon))
    assert max(row.expected_batch_size for row in rows) == 500
    assert best_for_its_cost(rows) is None
    cheaper = cheapest_nearly_as_good(rows)
    assert cheaper is not None
    assert cheaper.expected_batch_size == 250
    assert cheaper.signal_gain >= -NEARLY


# The figures.


@pytest.fixture(scope="module")
def drawn() -> tuple[EtaCurve, ...]:
    return tuple(eta_curves(CIFAR10))


def test_epsilon_falls_with_the_noise_towards_one_limit_for_all_steps(drawn: tuple[EtaCurve, ...]) -> None:
    total = total_noise(CIFAR10)
    limit = large_noise_epsilon(total.signal, delta=CIFAR10.delta)
    assert [curve.steps for curve in drawn] == [156, 2500, 40_000]
    for curve in drawn:
        for point in curve.points:
            eta = point.sampling_probability * math.sqrt(curve.steps / 2) / point.noise_multiplier
            assert eta == pytest.approx(total.eta)
        epsilons = [point.epsilon for point in curve.points]
        assert epsilons == sorted(epsilons, reverse=True)
        assert epsilons[0] > 3 * limit  # the wall
        assert limit < epsilons[-1] < 1.02 * limit  # the plain behind it
    [own] = [curve for curve in drawn if curve.is_of_plan]
    [point] = [point for point in own.points if point.noise_multiplier == CIFAR10.noise_multiplier]
    assert point.sampling_probability == pytest.approx(CIFAR10.sampling_probability)
    assert point.epsilon == pytest.approx(CIFAR10.bound().epsilon)


def test_the_divergence_ratio_is_near_one_for_large_noise_only() -> None:
    imagenet = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_200_000, steps=72_000, delta=8e-7)
    assert total_noise(imagenet).eta_step == pytest.approx(3.9e-3, abs=5e-5)  # that of the paper's Figure 3
    curves = ratio_curves(imagenet)
    assert [(curve.noise_multiplier, curve.is_of_plan) for curve in curves] == [
        *((noise, False) for noise in (0.5, 1.0, 2.0)),
        (2.5, True),
        (4.0, False),
    ]
    for curve in curves:
        assert list(curve.ratios) == sorted(curve.ratios)
        near = [ratio for order, ratio in zip(curve.orders, curve.ratios, strict=True) if order <= 12]
        assert (max(near) < 1.25) == (curve.noise_multiplier >= 2)
        assert min(near) >= 1
    at_order_eight = [curve.ratios[RATIO_ORDERS.index(8.0)] for curve in curves]
    assert at_order_eight == sorted(at_order_eight, reverse=True)


def test_the_deciding_order_is_where_the_estimate_takes_its_minimum() -> None:
    eta, order = total_noise(CIFAR10).eta, deciding_order(CIFAR10)

    def estimate_at(other: float) -> float:
        return other * eta**2 - math.log(CIFAR10.delta) / (other - 1)

    assert estimate_at(order) == pytest.approx(eta**2 + 2 * eta * math.sqrt(-math.log(CIFAR10.delta)))
    assert estimate_at(order) < min(estimate_at(0.9 * order), estimate_at(1.1 * order))


def test_the_json_form_has_every_part_and_can_be_written() -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=500, records=1000, steps=4, delta=1e-5)
    shape = tan_outlook(plan, step_factors=(1.0,)).to_json()
    parts = {"standing", "other_batches", "other_steps", "twice_the_data", "constant_eta", "divergence_ratio"}
    assert all(shape[part] for part in parts)
    assert strict_json.loads(strict_json.dumps(shape))
