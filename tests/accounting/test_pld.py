"""The tight accountant, against reference values and two other implementations."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats

from lehr.accounting.closed_forms import gaussian_epsilon
from lehr.accounting.events import Adjacency, Composed, Gaussian, Laplace, NonPrivate, PoissonSampled, PureDP, Repeated
from lehr.accounting.pld import LARGEST_STEPS, MOST_DIFFERENT_STEPS, PLD, PldAccountant
from lehr.accounting.privacy_loss import Direction
from lehr.errors import AccountantFailed, UnsupportedEvent
from tests.accounting.exact_profile import exact_profile
from tests.accounting.settings import DPSGD, TAN, Drawn, Reference, in_the_whole_box, in_usual_ranges

ADD_OR_REMOVE = Adjacency.ADD_OR_REMOVE_ONE


@pytest.mark.parametrize("reference", [*DPSGD, *TAN])
def test_it_gives_the_reference_values(reference: Reference) -> None:
    epsilon = PLD.epsilon(reference.event, delta=reference.delta, adjacency=ADD_OR_REMOVE)
    assert epsilon == pytest.approx(reference.pld, abs=5e-4 if reference.pld != 6.58 else 5e-3)


def _delta_of_one_step(drawn: Drawn, epsilon: float) -> float:
    """The larger of both directions."""
    return max(
        exact_profile(
            sampling_probability=drawn.sampling_probability,
            noise_multiplier=drawn.noise_multiplier,
            direction=direction,
            epsilon=epsilon,
        )
        for direction in Direction
    )


def test_one_step_agrees_with_its_exact_profile_over_the_whole_box_and_is_never_below() -> None:
    for drawn in in_the_whole_box(150, seed=4):
        one_step = replace(drawn, steps=1)
        found = PLD.epsilon(one_step.event, delta=drawn.delta, adjacency=ADD_OR_REMOVE)
        assert _delta_of_one_step(drawn, found) <= drawn.delta * (1 + 1e-9), drawn
        if found > 0.01:
            assert _delta_of_one_step(drawn, found * (1 - 5e-3)) > drawn.delta, drawn


def _by_dp_accounting(drawn: Drawn, *, is_pessimistic: bool) -> float:
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(
        drawn.noise_multiplier,
        value_discretization_interval=1e-4,
        sampling_prob=drawn.sampling_probability,
        pessimistic_estimate=is_pessimistic,
    )
    return float(one.self_compose(drawn.steps).get_epsilon_for_delta(drawn.delta))


@pytest.mark.parametrize(
    "num_drawn, num_compared",
    [pytest.param(8, 1, marks=pytest.mark.slow), pytest.param(60, 10, marks=pytest.mark.whole)],
)
def test_it_lies_between_the_optimistic_and_the_pessimistic_grid_of_dp_accounting(
    num_drawn: int, num_compared: int
) -> None:
    compared = 0
    for drawn in in_usual_ranges(num_drawn, seed=3):
        epsilon = PLD.epsilon(drawn.event, delta=drawn.delta, adjacency=ADD_OR_REMOVE)
        if not (0.1 <= epsilon <= 20 and drawn.steps <= 5000):
            continue
        compared += 1
        assert epsilon >= _by_dp_accounting(drawn, is_pessimistic=False) * (1 - 1e-6), drawn
        assert epsilon <= _by_dp_accounting(drawn, is_pessimistic=True) * (1 + 1e-4), drawn
    assert compared >= num_compared


@pytest.mark.whole
def test_it_agrees_with_prv_accountant_within_its_error_bound_on_50_settings() -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    compared = 0
    for drawn in in_usual_ranges(400, seed=5):
        epsilon = PLD.epsilon(drawn.event, delta=drawn.delta, adjacency=ADD_OR_REMOVE)
        if not (0.1 <= epsilon <= 20 and drawn.steps <= 20_000 and drawn.sampling_probability < 0.9):
            continue
        mechanism = PoissonSubsampledGaussianMechanism(
            sampling_probability=drawn.sampling_probability, noise_multiplier=drawn.noise_multiplier
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own use of deprecated NumPy
            accountant = PRVAccountant(
                prvs=[mechanism],
                max_self_compositions=[drawn.steps],
                eps_error=0.02,
                delta_error=drawn.delta / 1000,
            )
            low, _, high = accountant.compute_epsilon(delta=drawn.delta, num_self_compositions=[drawn.steps])
        assert low <= epsilon <= high, drawn
        compared += 1
        if compared == 50:
            return
    pytest.fail(f"only {compared} of 50 settings were compared")


def test_the_larger_direction_counts() -> None:
    both = PLD.epsilon(Repeated(PoissonSampled(0.2, Gaussian(0.7)), 5), delta=1e-5, adjacency=ADD_OR_REMOVE)
    removing = pld.privacy_loss_distribution.from_gaussian_mechanism(
        0.7, sampling_prob=0.2, neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    assert both == pytest.approx(removing.self_compose(5).get_epsilon_for_delta(1e-5), rel=1e-3)


def test_unsampled_steps_take_the_closed_form() -> None:
    event = Composed((Repeated(Gaussian(10.0), 50), Repeated(PoissonSampled(1.0, Gaussian(20.0)), 100)))
    found = PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert found == pytest.approx(gaussian_epsilon(0.75, delta=1e-5), rel=1e-12)


def test_unsampled_steps_are_counted_under_replace_one_too() -> None:
    found = PLD.epsilon(Gaussian(2.0), delta=1e-5, adjacency=Adjacency.REPLACE_ONE)
    assert found == gaussian_epsilon(0.25, delta=1e-5)


def test_a_mixed_composition_costs_more_than_its_parts_and_less_than_their_sum() -> None:
    sampled = Repeated(PoissonSampled(0.01, Gaussian(1.0)), 500)
    query = Gaussian(5.0)
    parts = [PLD.epsilon(part, delta=1e-5, adjacency=ADD_OR_REMOVE) for part in (sampled, query)]
    whole = PLD.epsilon(Composed((sampled, query)), delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert max(parts) < whole < sum(parts)


def test_without_noise_epsilon_is_infinite() -> None:
    for event in (Gaussian(0.0), PoissonSampled(0.5, Gaussian(0.0)), NonPrivate("raw")):
        assert PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) == math.inf


def test_nothing_costs_nothing() -> None:
    assert PLD.epsilon(Composed(()), delta=1e-5, adjacency=ADD_OR_REMOVE) == 0


def test_other_noise_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedEvent, match="'pld' cannot count Laplace"):
        PLD.epsilon(Laplace(1.0), delta=1e-5, adjacency=ADD_OR_REMOVE)


def test_more_steps_than_the_transform_can_take_are_refused() -> None:
    event = Repeated(PoissonSampled(1e-6, Gaussian(10.0)), LARGEST_STEPS + 1)
    with pytest.raises(AccountantFailed, match="more than 100000000 steps"):
        PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)


def test_noise_too_small_for_a_double_is_refused() -> None:
    with pytest.raises(AccountantFailed, match="one step can lose more than 500"):
        PLD.epsilon(PoissonSampled(0.5, Gaussian(0.02)), delta=1e-5, adjacency=ADD_OR_REMOVE)


def test_many_counts_at_once_are_those_of_each_alone() -> None:
    step = PoissonSampled(0.01, Gaussian(1.1))
    many = PldAccountant().repeated(step, delta=1e-5, adjacency=ADD_OR_REMOVE, fewest=10, most=20)
    alone = PLD.epsilon(Repeated(step, 15), delta=1e-5, adjacency=ADD_OR_REMOVE)
    assert many(15) == pytest.approx(alone, rel=1e-4)


def test_more_ways_of_sampling_than_it_can_hold_are_refused() -> None:
    event = Composed(tuple(PoissonSampled(0.01 + i / 10_000, Gaussian(1.0)) for i in range(MOST_DIFFERENT_STEPS + 1)))
    with pytest.raises(AccountantFailed, match="more than 192 different steps"):
        PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE)


def _optimal_delta(epsilon: float, *, pure: float, count: int) -> float:
    """δ at ε of randomised response, so many times: a sum over how often the bit was true."""
    true = np.arange(count + 1)
    losses = (2 * true - count) * pure
    masses = stats.binom.pmf(true, count, 1 / (1 + math.exp(-pure)))
    return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))


@pytest.mark.parametrize("pure, count", [(1.0, 1), (0.1, 1), (0.5, 7), (0.1, 200), (0.02, 3000), (8.0, 3)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_pure_mechanisms_compose_to_the_optimum_of_randomised_response(pure: float, count: int, delta: float) -> None:
    for adjacency in Adjacency:
        found = PLD.epsilon(Repeated(PureDP(pure), count), delta=delta, adjacency=adjacency)
        assert _optimal_delta(found, pure=pure, count=count) <= delta * (1 + 1e-9)
        assert _optimal_delta(found * (1 - 1e-3), pure=pure, count=count) > delta
        assert found <= count * pure


def test_pure_mechanisms_with_gaussian_steps_agree_with_dp_accounting() -> None:
    event = Composed((Repeated(PureDP(0.1), 20), Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300), Gaussian(4.0)))
    response = pld.privacy_loss_distribution.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(0.1), value_discretization_interval=1e-4
    ).self_compose(20)
    steps = pld.privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.02).self_compose(300)
    noise = pld.privacy_loss_distribution.from_gaussian_mechanism(4.0)
    expected = response.compose(steps).compose(noise).get_epsilon_for_delta(1e-5)
    assert PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) == pytest.approx(expected, rel=2e-3)


def test_a_pure_mechanism_of_epsilon_zero_costs_nothing() -> None:
    run = Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300)
    with_it = Composed((run, Repeated(PureDP(0.0), 1000)))
    found = [PLD.epsilon(event, delta=1e-5, adjacency=ADD_OR_REMOVE) for event in (run, with_it)]
    assert found[0] == found[1]
    assert PLD.epsilon(PureDP(0.0), delta=1e-5, adjacency=ADD_OR_REMOVE) == 0


def test_unsampled_steps_of_many_levels_beside_sampled_ones_are_counted_exactly() -> None:
    sampled = Repeated(PoissonSampled(1e-6, Gaussian(5.0)), 3)
    many = Composed((sampled, *(Gaussian(10.0 + level) for level in range(300))))
    squared_mu = sum((10.0 + level) ** -2 for level in range(300))
    found = PLD.epsilon(many, delta=1e-5, adjacency=ADD_OR_REMOVE)
    exact = gaussian_epsilon(squared_mu, delta=1e-5)
    assert exact <= found <= exact * 1.0002
