"""The tight accountant, against reference values, closed forms and two other implementations."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from scipy import optimize, special, stats

from lehr.accounting.closed_forms import GDP, TAN, GaussianStep, cut_probability, gaussian_epsilon, gaussian_steps
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    GroupPoissonSampled,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
)
from lehr.accounting.pld import LARGEST_GROUP, LARGEST_STEPS, MOST_DIFFERENT_STEPS, PLD
from lehr.accounting.privacy_loss import Direction
from lehr.accounting.rdp import RDP_BALLE20
from lehr.errors import AccountantFailed, UnsupportedEvent
from tests.accounting.settings import (
    DPSGD,
    Drawn,
    Reference,
    exact_profile,
    in_the_whole_box,
    in_usual_ranges,
)
from tests.accounting.settings import (
    TAN as TAN_REFERENCES,
)

ADD_OR_REMOVE, ZERO_OUT = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.ZERO_OUT
DELTA = 1e-5
RUN = Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300)


def epsilon_of(event: Event, *, accountant: Any = PLD, delta: float = DELTA) -> float:
    return float(accountant.epsilon(event, delta=delta, adjacency=ADD_OR_REMOVE))


@pytest.mark.parametrize("reference", [*DPSGD, *TAN_REFERENCES])
def test_pld_gives_the_reference_values(reference: Reference) -> None:
    assert epsilon_of(reference.event, delta=reference.delta) == pytest.approx(reference.pld, abs=reference.precision)


def test_one_step_agrees_with_its_exact_profile_over_the_whole_box_and_is_never_below() -> None:
    def exact(drawn: Drawn, epsilon: float) -> float:
        q, sigma = drawn.sampling_probability, drawn.noise_multiplier
        return max(exact_profile(q, sigma, direction, epsilon) for direction in Direction)

    for drawn in in_the_whole_box(150, seed=4):
        found = epsilon_of(replace(drawn, steps=1).event, delta=drawn.delta)
        assert exact(drawn, found) <= drawn.delta * (1 + 1e-9), drawn
        if found > 0.01:
            assert exact(drawn, found * (1 - 5e-3)) > drawn.delta, drawn


@pytest.mark.parametrize(
    "compared", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.whole)]
)
def test_pld_lies_between_the_optimistic_and_the_pessimistic_grid_of_dp_accounting(compared: int) -> None:
    for drawn in in_usual_ranges(60, seed=3):
        if drawn.steps > 5000 or not 0.1 <= (found := epsilon_of(drawn.event, delta=drawn.delta)) <= 20:
            continue
        low, high = (
            pld.privacy_loss_distribution.from_gaussian_mechanism(
                drawn.noise_multiplier,
                value_discretization_interval=1e-4,
                sampling_prob=drawn.sampling_probability,
                pessimistic_estimate=is_pessimistic,
            )
            .self_compose(drawn.steps)
            .get_epsilon_for_delta(drawn.delta)
            for is_pessimistic in (False, True)
        )
        assert low * (1 - 1e-6) <= found <= high * (1 + 1e-4), drawn
        compared -= 1
        if not compared:
            return
    pytest.fail("too few settings were compared")


@pytest.mark.whole
def test_pld_agrees_with_prv_accountant_within_its_error_bound_on_50_settings() -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    compared = 0
    for drawn in in_usual_ranges(400, seed=5):
        found = epsilon_of(drawn.event, delta=drawn.delta)
        if not (0.1 <= found <= 20 and drawn.steps <= 20_000 and drawn.sampling_probability < 0.9):
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
        assert low <= found <= high, drawn
        compared += 1
        if compared == 50:
            return
    pytest.fail(f"only {compared} of 50 settings were compared")


def test_the_larger_direction_counts() -> None:
    both = epsilon_of(Repeated(PoissonSampled(0.2, Gaussian(0.7)), 5))
    removing = pld.privacy_loss_distribution.from_gaussian_mechanism(0.7, sampling_prob=0.2)
    assert both == pytest.approx(removing.self_compose(5).get_epsilon_for_delta(DELTA), rel=1e-3)


def test_unsampled_steps_take_the_closed_form_under_any_adjacency() -> None:
    event = Composed((Repeated(Gaussian(10.0), 50), Repeated(PoissonSampled(1.0, Gaussian(20.0)), 100)))
    assert epsilon_of(event) == pytest.approx(gaussian_epsilon(0.75, delta=DELTA), rel=1e-12)
    replaced = PLD.epsilon(Gaussian(2.0), delta=DELTA, adjacency=Adjacency.REPLACE_ONE)
    assert replaced == gaussian_epsilon(0.25, delta=DELTA)


def test_unsampled_steps_of_many_levels_next_to_sampled_ones_are_counted_exactly() -> None:
    sampled = Repeated(PoissonSampled(1e-6, Gaussian(5.0)), 3)
    found = epsilon_of(Composed((sampled, *(Gaussian(10.0 + level) for level in range(300)))))
    exact = gaussian_epsilon(sum((10.0 + level) ** -2 for level in range(300)), delta=DELTA)
    assert exact <= found <= exact * 1.0002


def test_a_mixed_composition_costs_more_than_its_parts_and_less_than_their_sum() -> None:
    parts = (Repeated(PoissonSampled(0.01, Gaussian(1.0)), 500), Gaussian(5.0))
    alone = [epsilon_of(part) for part in parts]
    assert max(alone) < epsilon_of(Composed(parts)) < sum(alone)


@pytest.mark.parametrize("event", [Gaussian(0.0), PoissonSampled(0.5, Gaussian(0.0)), NonPrivate("raw")])
def test_without_noise_epsilon_is_infinite(event: Event) -> None:
    assert epsilon_of(event) == math.inf


def test_events_out_of_reach_are_refused() -> None:
    many_ways = Composed(tuple(PoissonSampled(0.01 + i / 1e4, Gaussian(1.0)) for i in range(MOST_DIFFERENT_STEPS + 1)))
    for event in (
        Repeated(PoissonSampled(1e-6, Gaussian(10.0)), LARGEST_STEPS + 1),
        PoissonSampled(0.5, Gaussian(0.02)),  # whose loss leaves the range of a double
        many_ways,
    ):
        with pytest.raises(AccountantFailed):
            epsilon_of(event)
    with pytest.raises(AccountantFailed):
        epsilon_of(RUN, delta=1e-250)


def test_many_counts_at_once_are_those_of_each_alone() -> None:
    step = PoissonSampled(0.01, Gaussian(1.1))
    many = PLD.repeated(step, delta=DELTA, adjacency=ADD_OR_REMOVE, fewest=10, most=20)
    assert many(15) == pytest.approx(epsilon_of(Repeated(step, 15)), rel=1e-4)


def _optimal_delta(epsilon: float, *, pure: float, count: int) -> float:
    """δ at ε of randomised response, so many times: a sum over how often the bit was true."""
    true = np.arange(count + 1)
    losses = (2 * true - count) * pure
    masses = stats.binom.pmf(true, count, 1 / (1 + math.exp(-pure)))
    return float(masses @ np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0))


@pytest.mark.parametrize("pure, count", [(1.0, 1), (0.1, 1), (0.1, 3), (0.5, 7), (0.1, 200), (0.02, 3000), (8.0, 3)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_pure_mechanisms_compose_to_the_optimum_of_randomised_response(pure: float, count: int, delta: float) -> None:
    found = PLD.epsilon(Repeated(PureDP(pure), count), delta=delta, adjacency=Adjacency.REPLACE_ONE)
    assert _optimal_delta(found, pure=pure, count=count) <= delta * (1 + 1e-9)
    assert _optimal_delta(found * (1 - 1e-3), pure=pure, count=count) > delta
    assert found <= count * pure


def test_pure_mechanisms_with_gaussian_steps_agree_with_dp_accounting() -> None:
    event = Composed((Repeated(PureDP(0.1), 20), RUN, Gaussian(4.0)))
    response = pld.privacy_loss_distribution.from_privacy_parameters(
        pld.common.DifferentialPrivacyParameters(0.1), value_discretization_interval=1e-4
    ).self_compose(20)
    steps = pld.privacy_loss_distribution.from_gaussian_mechanism(1.1, sampling_prob=0.02).self_compose(300)
    noise = pld.privacy_loss_distribution.from_gaussian_mechanism(4.0)
    expected = response.compose(steps).compose(noise).get_epsilon_for_delta(DELTA)
    assert epsilon_of(event) == pytest.approx(expected, rel=2e-3)


def test_a_pure_mechanism_of_epsilon_zero_costs_nothing() -> None:
    assert epsilon_of(Composed((RUN, Repeated(PureDP(0.0), 1000)))) == epsilon_of(RUN)
    assert epsilon_of(PureDP(0.0)) == 0


# Closed forms


def test_steps_are_counted_by_probability_and_noise() -> None:
    sampled = PoissonSampled(0.5, Gaussian(2.0))
    event = Composed((Gaussian(2.0), Repeated(PoissonSampled(1.0, Gaussian(2.0)), 4), sampled, NonPrivate("raw")))
    steps = gaussian_steps(event, adjacency=ADD_OR_REMOVE, accountant="x")
    assert steps == {GaussianStep(1.0, 2.0): 5, GaussianStep(0.5, 2.0): 1, GaussianStep(1.0, 0.0): 1}


@pytest.mark.parametrize(
    "event",
    [
        Laplace(1.0),
        PureDP(0.1),
        SampledWithoutReplacement(10, 2, Gaussian(1.0)),
        RepeatAndSelect(Gaussian(1.0), mean=2.0),
        RenyiLimit(6.0, 0.3),
        PoissonSampled(0.5, Gaussian(1.0)),
    ],
)
def test_an_event_that_is_no_gaussian_step_is_refused_by_name(event: Event) -> None:
    with pytest.raises(UnsupportedEvent) as caught:
        gaussian_steps(Composed((Gaussian(1.0), event)), adjacency=Adjacency.REPLACE_ONE, accountant="pld")
    assert (caught.value.accountant, caught.value.event) == ("pld", event)


def _gaussian_delta(squared_mu: float, epsilon: float) -> float:
    """The exact privacy profile (Balle & Wang 2018, Theorem 8)."""
    mu = math.sqrt(squared_mu)
    second = math.exp(epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu))
    return float(stats.norm.cdf(mu / 2 - epsilon / mu) - second)


@pytest.mark.parametrize("squared_mu", [1e-6, 1e-4, 0.01, 0.3, 1.0, 16.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.01])
def test_the_gaussian_profile_at_epsilon_is_delta(squared_mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(squared_mu, delta=delta)
    if epsilon > 0:
        assert _gaussian_delta(squared_mu, epsilon) == pytest.approx(delta, rel=1e-5)
    assert _gaussian_delta(squared_mu, epsilon) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("squared_mu", [1e8, 1e12, 1.1e12, 1e18])
def test_an_enormous_epsilon_is_finite_and_not_below_half_of_squared_mu(squared_mu: float) -> None:
    assert squared_mu / 2 < gaussian_epsilon(squared_mu, delta=1e-12) < squared_mu / 2 + 10 * math.sqrt(squared_mu)


def test_gdp_is_the_formula_of_bu_and_others() -> None:
    probability, sigma, steps = 0.01, 1.1, 3000
    squared_mu = probability**2 * steps * math.expm1(sigma**-2)
    event = Repeated(PoissonSampled(probability, Gaussian(sigma)), steps)
    assert epsilon_of(event, accountant=GDP) == pytest.approx(gaussian_epsilon(squared_mu, delta=DELTA), rel=1e-9)
    assert epsilon_of(Repeated(Gaussian(10.0), 25), accountant=GDP) == gaussian_epsilon(0.25, delta=DELTA)
    assert epsilon_of(PoissonSampled(0.1, Gaussian(0.01)), accountant=GDP) == math.inf


@pytest.mark.parametrize("reference", TAN_REFERENCES)
def test_tan_gives_the_reference_values(reference: Reference) -> None:
    found = epsilon_of(reference.event, accountant=TAN, delta=reference.delta)
    assert found == pytest.approx(reference.tan, abs=reference.precision)


@pytest.mark.parametrize(
    "accountant, event", [(GDP, DPSGD[0].event), (TAN, Repeated(PoissonSampled(0.01, Gaussian(0.4)), 1000))]
)
def test_an_estimate_can_lie_below_the_truth(accountant: Any, event: Event) -> None:
    assert accountant.is_estimate
    assert epsilon_of(event, accountant=accountant) < epsilon_of(event)


# Truncated Poisson sampling.


def truncated(seed: int) -> tuple[TruncatedPoissonSampled, int]:
    """A random step with a random largest batch, from hardly above the expected size to one never reached."""
    rng = np.random.default_rng(seed)
    records = int(rng.integers(100, 5000))
    batch = float(rng.uniform(0.02, 0.3)) * records
    deviation = math.sqrt(batch * (1 - batch / records))
    largest = min(records, math.ceil(batch + rng.uniform(0.5, 8) * deviation))
    step = TruncatedPoissonSampled(batch / records, records, largest, Gaussian(float(rng.uniform(1.0, 4.0))))
    return step, int(rng.integers(1, 30))


def poisson(step: TruncatedPoissonSampled, *, noise: float = 1.0) -> PoissonSampled:
    return PoissonSampled(step.sampling_probability, Gaussian(noise * step.event.noise_multiplier))


def pld_epsilon(event: Event) -> float:
    return PLD.epsilon(event, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@pytest.mark.parametrize("seed", range(6))
def test_truncated_steps_cost_between_those_that_are_never_cut_and_those_that_always_are(seed: int) -> None:
    step, count = truncated(seed)
    found = pld_epsilon(Repeated(step, count))
    never, always = (pld_epsilon(Repeated(poisson(step, noise=noise), count)) for noise in (1.0, 0.5))
    assert never * (1 - 1e-4) <= found <= always * (1 + 1e-4)
    rdp = RDP_BALLE20.epsilon(Repeated(step, count), delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert found <= rdp * (1 + 1e-4)


@pytest.mark.parametrize("seed", range(50))
def test_truncated_steps_lie_between_the_optimistic_and_the_pessimistic_grid_of_dp_accounting(seed: int) -> None:
    """The pair of the proof, on dp-accounting's grids: a coin decides between the noise and half of it."""
    step, count = truncated(seed)

    def theirs(*, is_pessimistic: bool) -> float:
        usual, cut = (
            pld.privacy_loss_distribution.from_gaussian_mechanism(
                noise * step.event.noise_multiplier,
                value_discretization_interval=5e-4,
                sampling_prob=step.sampling_probability,
                pessimistic_estimate=is_pessimistic,
                use_connect_dots=is_pessimistic,
            )
            for noise in (1.0, 0.5)
        )
        mixed = usual.compute_mixture(cut, 1 - cut_probability(step))
        return float(mixed.self_compose(count).get_epsilon_for_delta(1e-5))

    found = pld_epsilon(Repeated(step, count))
    assert theirs(is_pessimistic=False) <= found <= theirs(is_pessimistic=True) * (1 + 1e-4)


@pytest.mark.parametrize("seed", range(50))
def test_a_truncated_step_agrees_with_dp_accounting(seed: int) -> None:
    """Theirs bounds a cut batch more loosely, under replace-one, with the probability for exactly all records."""
    step, _ = truncated(seed)
    reference = pld.privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=step.records,
        sampling_probability=step.sampling_probability,
        truncated_batch_size=step.largest_batch,
        noise_multiplier=step.event.noise_multiplier,
        value_discretization_interval=1e-3,
    )
    theirs, ours = reference.get_epsilon_for_delta(1e-5), pld_epsilon(step)
    assert ours <= 1.15 * theirs + 1e-3
    if cut_probability(step) < 1e-9:
        assert math.isclose(ours, theirs, rel_tol=2e-3, abs_tol=2e-3)


def test_one_truncated_step_has_the_divergence_of_the_mixture() -> None:
    step = TruncatedPoissonSampled(0.1, 1000, 110, Gaussian(1.0))
    epsilon, share = pld_epsilon(step), cut_probability(step)
    assert 0.05 < share < 0.5

    def divergence(sigma: float) -> float:  # of removing a record, which is the larger one here
        q = 0.1
        edge = sigma**2 * math.log((math.exp(epsilon) - (1 - q)) / q) + 0.5
        absent, present = stats.norm.sf(edge / sigma), stats.norm.sf((edge - 1) / sigma)
        return float((1 - q) * absent + q * present - math.exp(epsilon) * absent)

    assert math.isclose((1 - share) * divergence(1.0) + share * divergence(0.5), 1e-5, rel_tol=2e-3)


def test_a_batch_that_holds_everybody_is_never_cut() -> None:
    step = TruncatedPoissonSampled(0.1, 1000, 1000, Gaussian(1.0))
    assert cut_probability(step) == 0
    assert pld_epsilon(Repeated(step, 10)) == pld_epsilon(Repeated(poisson(step), 10))


@pytest.mark.parametrize("accountant", [PLD, RDP_BALLE20, GDP, TAN], ids=lambda one: one.name)
def test_truncated_steps_are_refused_by_name_where_they_cannot_be_counted(accountant: Any) -> None:
    step = TruncatedPoissonSampled(0.1, 1000, 150, Gaussian(1.0))
    adjacency = Adjacency.ADD_OR_REMOVE_ONE if accountant in (GDP, TAN) else Adjacency.REPLACE_ONE
    with pytest.raises(UnsupportedEvent):
        accountant.epsilon(step, delta=1e-5, adjacency=adjacency)


# Zero-out: a record keeps its place in every draw, and adds nothing.


def fixed_size(q: float, sigma: float) -> SampledWithoutReplacement:
    return SampledWithoutReplacement(10_000, round(q * 10_000), Gaussian(sigma))


def zero_out_epsilon(event: Event, *, delta: float = DELTA) -> float:
    return PLD.epsilon(event, delta=delta, adjacency=ZERO_OUT)


class Neighbours:
    """What a step of fixed size releases on a line: with the record, which adds g, and with it zeroed out.

    Where the record is not drawn, another has its place, which adds y.
    """

    def __init__(self, q: float, sigma: float, *, g: float = 1.0, y: float) -> None:
        outcomes = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 40_001)
        self.width = float(outcomes[1] - outcomes[0])
        other, present, absent = (stats.norm.pdf(outcomes, mean, sigma) for mean in (y, g, 0.0))
        self.with_it, self.zeroed = (1 - q) * other + q * present, (1 - q) * other + q * absent

    def delta(self, epsilon: float) -> float:
        """The δ at which this ε holds for them, in the worse direction."""
        pairs = ((self.with_it, self.zeroed), (self.zeroed, self.with_it))
        return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) * self.width for p, q in pairs)


SETTINGS_OF_A_STEP = [(0.1, 1.0, 1e-5), (0.01, 2.0, 1e-6), (0.5, 0.8, 1e-3), (0.3, 5.0, 1e-4), (0.9, 0.5, 1e-5)]


@pytest.mark.parametrize("q, sigma, delta", SETTINGS_OF_A_STEP)
def test_a_step_of_fixed_size_costs_what_its_worst_neighbours_show_if_one_is_zeroed_out(
    q: float, sigma: float, delta: float
) -> None:
    epsilon = zero_out_epsilon(fixed_size(q, sigma), delta=delta)
    worst = max(Neighbours(q, sigma, y=y).delta(epsilon) for y in (-1.0, 1.0))
    assert math.isclose(worst, delta, rel_tol=1e-3)
    generator = np.random.default_rng(0)
    for g, y in generator.uniform(-1, 1, (20, 2)):
        assert Neighbours(q, sigma, g=g, y=y).delta(epsilon) <= delta * (1 + 1e-3)
    as_poisson = zero_out_epsilon(PoissonSampled(q, Gaussian(sigma)), delta=delta)  # a common mistake
    assert Neighbours(q, sigma, y=-1.0).delta(as_poisson) > 1.01 * delta


@pytest.mark.parametrize("q, sigma, delta", SETTINGS_OF_A_STEP[:3])
def test_two_steps_of_fixed_size_cover_neighbours_that_differ_from_step_to_step(
    q: float, sigma: float, delta: float
) -> None:
    epsilon = zero_out_epsilon(Repeated(fixed_size(q, sigma), 2), delta=delta)
    for places in ((-1.0, -1.0), (-1.0, 1.0), (1.0, 1.0), (-1.0, 0.0)):
        first, second = (Neighbours(q, sigma, y=y) for y in places)
        every = slice(None, None, 25)  # both steps on a coarser line
        for one, other in (("with_it", "zeroed"), ("zeroed", "with_it")):
            p, below = (np.outer(getattr(first, side)[every], getattr(second, side)[every]) for side in (one, other))
            found = float(np.maximum(p - math.exp(epsilon) * below, 0).sum()) * (25 * first.width) ** 2
            assert found <= delta * (1 + 1e-2)


@pytest.mark.parametrize("seed", range(50))
def test_under_zero_out_a_truncated_step_costs_no_more_than_dp_accounting_says(seed: int) -> None:
    """Theirs counts a record in a full batch as replaced."""
    step, _ = truncated(seed)
    reference = pld.privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=step.records,
        sampling_probability=step.sampling_probability,
        truncated_batch_size=step.largest_batch,
        noise_multiplier=step.event.noise_multiplier,
        value_discretization_interval=1e-3,
        neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
    )
    theirs, ours = reference.get_epsilon_for_delta(1e-5), zero_out_epsilon(step)
    plain = poisson(step)
    assert zero_out_epsilon(plain) == pld_epsilon(plain) <= ours * (1 + 1e-3)
    assert ours <= min(theirs + 2e-3, pld_epsilon(step) * (1 + 1e-4))
    if cut_probability(step) < 1e-9:
        assert math.isclose(ours, theirs, rel_tol=2e-3, abs_tol=2e-3)


def test_zeroing_out_costs_less_than_replacing_and_more_than_it_does_in_poisson_samples() -> None:
    event = Repeated(fixed_size(0.02, 2.0), 500)
    as_poisson = Repeated(PoissonSampled(0.02, Gaussian(2.0)), 500)
    replaced = Repeated(fixed_size(0.02, 1.0), 500)  # the same noise, which is half of the sensitivity there
    renyi = RDP_BALLE20.epsilon(event, delta=DELTA, adjacency=ZERO_OUT)
    assert 1.1 * zero_out_epsilon(as_poisson) < zero_out_epsilon(event) < renyi
    assert renyi == RDP_BALLE20.epsilon(replaced, delta=DELTA, adjacency=Adjacency.REPLACE_ONE)
    everybody = SampledWithoutReplacement(100, 100, Gaussian(2.0))
    assert math.isclose(zero_out_epsilon(everybody), zero_out_epsilon(Gaussian(2.0)), rel_tol=1e-4)


def test_what_is_not_proven_under_zero_out_is_refused() -> None:
    step = TruncatedPoissonSampled(0.1, 1000, 110, Gaussian(1.0))
    with pytest.raises(UnsupportedEvent):
        RDP_BALLE20.epsilon(step, delta=DELTA, adjacency=ZERO_OUT)
    with pytest.raises(UnsupportedEvent):
        PLD.epsilon(fixed_size(0.1, 1.0), delta=DELTA, adjacency=ADD_OR_REMOVE)
    assert zero_out_epsilon(fixed_size(0.1, 0.0)) == math.inf


# Groups of records.


def group_step(q: float, size: int, sigma: float) -> GroupPoissonSampled:
    return GroupPoissonSampled(q, size, Gaussian(sigma))


def group_profile(q: float, size: int, sigma: float, epsilon: float) -> float:
    """The δ at ε of one step, in the worse direction: the loss is monotone in the outcome."""
    drawn = np.arange(size + 1)
    law = stats.binom(size, q)

    def log_ratio(outcome: float) -> float:
        return float(special.logsumexp(law.logpmf(drawn) + (2 * outcome - drawn) * drawn / (2 * sigma**2)))

    def outcome_of(loss: float) -> float:
        far = 100 * sigma + size
        return float(optimize.brentq(lambda outcome: log_ratio(outcome) - loss, -far, far, xtol=1e-14 * sigma))

    above = outcome_of(epsilon)
    removing = law.pmf(drawn) @ special.ndtr((drawn - above) / sigma) - math.exp(epsilon) * special.ndtr(-above / sigma)
    adding = 0.0
    if -epsilon > law.logpmf(0):
        below = outcome_of(-epsilon)
        mixture = law.pmf(drawn) @ special.ndtr((below - drawn) / sigma)
        adding = special.ndtr(below / sigma) - math.exp(epsilon) * mixture
    return max(float(removing), float(adding))


@pytest.mark.parametrize("seed", range(60))
def test_one_step_with_groups_has_the_divergence_of_the_mixture(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, q = int(rng.integers(2, 60)), float(np.exp(rng.uniform(math.log(1e-4), math.log(0.95))))
    sigma = float(math.sqrt(size) * np.exp(rng.uniform(-0.8, 2.0)))
    delta = float(10 ** rng.uniform(-9, -2))
    epsilon = epsilon_of(group_step(q, size, sigma), delta=delta)
    assert group_profile(q, size, sigma, epsilon) <= delta * (1 + 1e-6)
    if epsilon > 0.01:
        assert group_profile(q, size, sigma, epsilon * (1 - 5e-3)) > delta


@pytest.mark.parametrize("seed", range(8))
def test_steps_with_groups_are_counted_as_by_dp_accounting(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, q = int(rng.integers(2, 15)), float(np.exp(rng.uniform(math.log(1e-3), math.log(0.5))))
    steps = int(rng.integers(2, 200))
    sigma = (1 + size * q) * math.sqrt(steps) * float(rng.uniform(0.3, 2))
    drawn = list(range(size + 1))
    theirs = dp_event.MixtureOfGaussiansDpEvent(sigma, drawn, [float(stats.binom.pmf(each, size, q)) for each in drawn])
    expected = pld.PLDAccountant(value_discretization_interval=1e-3).compose(theirs, steps).get_epsilon(DELTA)
    assert epsilon_of(Repeated(group_step(q, size, sigma), steps)) == pytest.approx(expected, rel=3e-3, abs=2e-3)


def test_a_group_of_one_and_a_group_drawn_whole_are_the_steps_that_they_are() -> None:
    assert epsilon_of(Repeated(group_step(0.02, 1, 1.1), 300)) == epsilon_of(RUN)
    assert epsilon_of(Repeated(group_step(1.0, 4, 8.0), 30)) == epsilon_of(Repeated(Gaussian(2.0), 30))


def test_epsilon_rises_with_the_group_and_stays_below_that_of_group_privacy() -> None:
    found = [epsilon_of(Repeated(group_step(0.02, size, 5.0), 300)) for size in (1, 2, 4, 8, 16)]
    assert found == sorted(found)
    # All records of the group drawn together, whenever one of them is, lose more.
    together = epsilon_of(Repeated(PoissonSampled(1 - 0.98**4, Gaussian(5.0 / 4)), 300))
    assert found[1] < found[2] < together


@pytest.mark.parametrize("seed", range(20))
def test_vectors_in_any_directions_lose_no_more_than_parallel_ones(seed: int) -> None:
    """What the records of a group add is any vectors in the plane, of norm at most one each, with noise around them."""
    rng = np.random.default_rng(seed)
    size, q, sigma = int(rng.integers(2, 5)), float(rng.uniform(0.05, 0.9)), float(rng.uniform(0.5, 2))
    lengths, angles = rng.uniform(0, 1, size), rng.uniform(0, 2 * math.pi, size)
    vectors = np.stack([lengths * np.cos(angles), lengths * np.sin(angles)], axis=1)
    axis = np.linspace(-size - 6 * sigma, size + 6 * sigma, 400)
    x, y = np.meshgrid(axis, axis)
    without = np.exp(-(x**2 + y**2) / (2 * sigma**2)) * (axis[1] - axis[0]) ** 2 / (2 * math.pi * sigma**2)
    with_them = np.zeros_like(without)
    for subset in range(2**size):
        is_drawn = np.array([bool(subset >> row & 1) for row in range(size)])
        mean = vectors[is_drawn].sum(axis=0)
        chance = q ** is_drawn.sum() * (1 - q) ** (~is_drawn).sum()
        with_them += chance * without * np.exp((2 * (x * mean[0] + y * mean[1]) - mean @ mean) / (2 * sigma**2))
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        rise = math.exp(epsilon)
        found = max(np.maximum(with_them - rise * without, 0).sum(), np.maximum(without - rise * with_them, 0).sum())
        assert found <= group_profile(q, size, sigma, epsilon) + 1e-6


def test_what_cannot_be_counted_with_groups_is_refused() -> None:
    step = group_step(0.02, 3, 2.0)
    for adjacency in (Adjacency.REPLACE_ONE, ZERO_OUT):
        with pytest.raises(UnsupportedEvent):
            PLD.epsilon(step, delta=DELTA, adjacency=adjacency)
    with pytest.raises(UnsupportedEvent, match="pld counts them"):
        RDP_BALLE20.epsilon(step, delta=DELTA, adjacency=ADD_OR_REMOVE)
    with pytest.raises(AccountantFailed):
        epsilon_of(group_step(0.02, LARGEST_GROUP + 1, 2.0))
    assert epsilon_of(group_step(0.02, 3, 0.0)) == epsilon_of(group_step(0.5, 200, 1.0)) == math.inf
    assert epsilon_of(group_step(1e-7, 3, 2.0)) == 0.0
