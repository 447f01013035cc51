from __future__ import annotations

import math
from dataclasses import replace

import pytest

from lehr.accounting import ACCOUNTANTS
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian
from lehr.planning.plan import Plan
from lehr.planning.tan import (
    TotalNoise,
    large_noise_epsilon,
    largest_signal,
    priced,
    run_at,
    standing,
    total_noise,
    wall,
)
from lehr.schedules import StepDecay

IMAGENET = Plan(noise_multiplier=2.5, expected_batch_size=16_384, records=1_281_167, steps=72_000, delta=8e-7)
CIFAR10 = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
MNIST = Plan(noise_multiplier=1.23, expected_batch_size=512, records=60_000, steps=7245, delta=1e-5)


def with_eta(eta: float, *, steps: int = 1) -> TotalNoise:
    return TotalNoise(eta_step=eta / math.sqrt(steps), steps=steps)


@pytest.mark.parametrize(
    "plan, paper, balle20, tan, pld",
    [
        (IMAGENET, 7.97, 7.954, 8.215, 7.465),
        (replace(IMAGENET, expected_batch_size=32_768, steps=18_000), 8.00, 7.980, 8.215, 7.486),
        (CIFAR10, 7.1, 7.10, 7.48, 6.58),
    ],
)
def test_the_settings_of_the_paper_cost_what_every_accountant_is_known_to_say(
    plan: Plan, paper: float, balle20: float, tan: float, pld: float
) -> None:
    price = priced(plan.event, delta=plan.delta)
    assert price.accountant == "pld"
    assert price.epsilon == pytest.approx(pld, abs=0.005)
    assert price.epsilon_estimate == pytest.approx(tan, abs=0.005)
    assert price.epsilon_balle20 == pytest.approx(balle20, abs=0.005)
    assert price.epsilon_balle20 == pytest.approx(paper, abs=0.03)


@pytest.mark.parametrize(
    "records, printed, counted", [(40_000, 7.3, 9.16), (25_000, 13.7, 16.3), (5_000, 150.3, 158.5)]
)
def test_three_rows_of_the_papers_table_of_data_sizes_do_not_reproduce(
    records: int, printed: float, counted: float
) -> None:
    plan = replace(CIFAR10, records=records, delta=CIFAR10.delta * CIFAR10.records / records)
    found = priced(plan.event, delta=plan.delta).epsilon_balle20
    assert found == pytest.approx(counted, rel=0.003)
    assert found != pytest.approx(printed, rel=0.05)


@pytest.mark.parametrize("eta, epsilon", [(0.13, 1.0), (0.95, 8.0)])
def test_the_two_etas_of_figure_2_give_the_estimates_that_the_paper_names(eta: float, epsilon: float) -> None:
    price = priced(run_at(with_eta(eta, steps=10_000), 2.5), delta=8e-7)
    assert price.epsilon_estimate == pytest.approx(epsilon, rel=0.01)


def test_one_number_of_records_gives_all_four_numbers_of_the_papers_table_6() -> None:
    # That of 1.275 million records and its half, a little under ImageNet's 1 281 167.
    whole = replace(IMAGENET, records=1_275_000)
    half = replace(whole, records=637_500, delta=2 * whole.delta)
    for plan, printed, estimate in ((whole, 8.00, 8.26), (half, 17.98, 18.06)):
        price = priced(plan.event, delta=plan.delta)
        assert price.epsilon_balle20 == pytest.approx(printed, abs=0.005)
        assert price.epsilon_estimate == pytest.approx(estimate, abs=0.005)


def test_eta_is_the_signal_of_a_record_over_the_noise() -> None:
    total = total_noise(CIFAR10)
    assert total.eta_step == pytest.approx(4096 / 50_000 / (math.sqrt(2) * 3))
    assert total.eta**2 == pytest.approx((4096 / 50_000) ** 2 * 2500 / (2 * 3**2))
    assert total.total_noise * total.eta == pytest.approx(1)
    assert total.signal == pytest.approx(4096 / 50_000 * 50 / 3)
    assert total.sampling_probability(3.0) == pytest.approx(CIFAR10.sampling_probability)


def test_the_estimate_is_the_same_along_constant_eta() -> None:
    total = total_noise(CIFAR10)
    runs = [run_at(total, 1.5), run_at(total, 6.0), run_at(total, 3.0, steps=10_000)]
    estimates = [priced(run, delta=1e-5).epsilon_estimate for run in runs]
    assert estimates == pytest.approx([estimates[0]] * 3)


def test_no_setting_at_this_eta_is_cheaper_than_full_batches() -> None:
    total = total_noise(MNIST)
    limit = large_noise_epsilon(total.signal, delta=MNIST.delta)
    dearer = [priced(run_at(total, sigma), delta=MNIST.delta).epsilon for sigma in (1.0, 2.0, 4.0, 16.0)]
    assert dearer == sorted(dearer, reverse=True)
    assert dearer[-1] > limit
    full = math.sqrt(MNIST.steps) / total.signal
    assert priced(run_at(total, full), delta=MNIST.delta).epsilon == pytest.approx(limit, rel=1e-3)


def test_the_wall_keeps_its_promise_and_moves_with_the_tolerance() -> None:
    total = total_noise(MNIST)
    limit = large_noise_epsilon(total.signal, delta=MNIST.delta)
    walls = [wall(total, delta=MNIST.delta, tolerance=tolerance) for tolerance in (0.05, 0.1, 0.5)]
    assert None not in walls
    assert walls == sorted((sigma for sigma in walls if sigma is not None), reverse=True)
    for sigma, tolerance in zip(walls, (0.05, 0.1, 0.5), strict=True):
        assert sigma is not None
        share = priced(run_at(total, sigma), delta=MNIST.delta).epsilon / limit - 1
        assert 0.97 * tolerance < share <= tolerance


def test_a_plan_stands_on_the_side_of_the_wall_that_its_noise_says() -> None:
    before, behind = standing(CIFAR10), standing(MNIST)
    for stands in (before, behind):
        assert stands.wall is not None
        assert stands.is_clear_of_wall == (stands.noise_multiplier >= stands.wall)
    assert before.is_clear_of_wall
    assert not behind.is_clear_of_wall
    assert (before.is_estimate_fair, behind.is_estimate_fair) == (True, False)


def test_how_far_the_estimate_is_off_follows_from_the_tight_epsilon() -> None:
    stands = standing(CIFAR10)
    assert stands.epsilon == CIFAR10.bound().epsilon
    assert stands.estimate_off == pytest.approx(7.4837 / 6.5789 - 1, abs=1e-3)
    assert stands.balle20_off == pytest.approx(7.0985 / 6.5789 - 1, abs=1e-3)


def test_the_estimate_can_be_too_low_behind_the_wall() -> None:
    stands = standing(replace(MNIST, noise_multiplier=0.7, steps=2000))
    assert stands.estimate_off < -0.1


def test_the_largest_signal_is_that_of_one_gaussian_release() -> None:
    signal = largest_signal(epsilon=3.0, delta=1e-5)
    assert signal == pytest.approx(0.719, abs=0.001)
    gaussian = ACCOUNTANTS["pld"].epsilon(Gaussian(1 / signal), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert 3 * 0.999 < gaussian <= 3


def test_a_plan_with_hardly_any_noise_still_has_a_standing() -> None:
    stands = standing(Plan(noise_multiplier=1.0, expected_batch_size=500, records=500, steps=2000, delta=1e-5))
    assert stands.epsilon > 1000
    assert stands.share_of_ceiling == pytest.approx(1, abs=1e-3)
    assert stands.is_clear_of_wall  # full batches are the limit itself


def test_a_large_batch_reaches_nearly_all_of_the_largest_signal() -> None:
    plan = Plan(noise_multiplier=3.13, expected_batch_size=4096, records=60_000, steps=1000, delta=1e-5)
    assert standing(plan).share_of_ceiling == pytest.approx(0.96, abs=0.01)


@pytest.mark.parametrize(
    "plan, words",
    [
        (replace(MNIST, adjacency=Adjacency.REPLACE_ONE), "add-or-remove-one"),
        (replace(MNIST, steps=10, noise_schedule=StepDecay(every=5, decay=0.5)), "equal steps"),
        (replace(MNIST, asked=Gaussian(9.0)), "equal steps"),
        (replace(MNIST, noise_multiplier=0.0), "noise_multiplier"),
        (replace(MNIST, noise_multiplier=1e6, steps=1), "above 0"),
    ],
)
def test_a_plan_that_it_cannot_speak_about_is_refused(plan: Plan, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        standing(plan)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan])
def test_a_tolerance_that_is_none_is_refused(tolerance: float) -> None:
    with pytest.raises(InvalidValue, match="tolerance"):
        wall(total_noise(MNIST), delta=1e-5, tolerance=tolerance)


def test_the_json_form_calls_the_estimate_an_estimate() -> None:
    shape = standing(CIFAR10).to_json()
    assert shape["epsilon_tan"] == {
        "value": pytest.approx(7.4837, abs=1e-3),
        "standing": "an estimate, not a guarantee",
        "off": pytest.approx(0.1375, abs=1e-3),
    }
