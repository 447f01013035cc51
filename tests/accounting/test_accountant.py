"""One interface, the smallest valid bound, ε after every step, and calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.accounting.accountant import ACCOUNTANTS, EpsilonCurve, answers, bound, claim, version
from lehr.accounting.calibration import (
    OUT_OF_SIGHT,
    SMALLEST_SAMPLING_PROBABILITY,
    Target,
    largest_sample,
    largest_steps,
    last_within,
    refuse_other_than_three,
    smallest_noise_multiplier,
)
from lehr.accounting.claims import IDEAL_ARITHMETIC, SECRET_REPETITIONS, TRUE_RECORD_COUNT
from lehr.accounting.events import (
    Adjacency,
    Composed,
    Event,
    Gaussian,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RepeatAndSelect,
    Repeated,
    SampledWithoutReplacement,
)
from lehr.errors import InvalidValue, Unreachable, UnsupportedEvent
from tests.accounting.settings import DPSGD, Drawn, Reference, in_the_whole_box, in_usual_ranges
from tests.sizes import sizes

STEP = PoissonSampled(0.01, Gaussian(1.0))
RUN = Repeated(STEP, 1000)
DELTA = 1e-5
REPLACE = Adjacency.REPLACE_ONE


def test_the_accountants_are_listed_with_the_default_first() -> None:
    assert list(ACCOUNTANTS) == ["pld", "rdp-balle20", "rdp-mironov17", "gdp", "tan"]


def test_the_bound_is_the_smallest_valid_answer_and_no_estimate() -> None:
    given = {answer.accountant: answer for answer in answers(RUN, delta=DELTA)}
    smallest = bound(RUN, delta=DELTA)
    valid = [answer.epsilon for answer in given.values() if not answer.is_estimate and answer.epsilon is not None]
    assert smallest.epsilon == min(valid)
    assert given["gdp"].epsilon is not None
    assert given["gdp"].epsilon < smallest.epsilon  # so that taking an estimate would be noticed here
    assert {other.accountant for other in smallest.passed_over if other.reason} == set(ACCOUNTANTS) - {"pld"}


@pytest.mark.parametrize(
    "event, adjacency",
    [
        (Repeated(SampledWithoutReplacement(1000, 10, Gaussian(2.0)), 50), REPLACE),
        (RepeatAndSelect(RUN, mean=5.0), Adjacency.ADD_OR_REMOVE_ONE),
        (Composed((RUN, Laplace(3.0))), Adjacency.ADD_OR_REMOVE_ONE),
    ],
)
def test_an_event_that_pld_does_not_count_gets_a_renyi_bound(event: Event, adjacency: Adjacency) -> None:
    smallest = bound(event, delta=DELTA, adjacency=adjacency)
    assert smallest.accountant == "rdp-balle20"
    assert 0 < smallest.epsilon < math.inf


@pytest.mark.parametrize("event", [Gaussian(0.0), NonPrivate("raw"), Repeated(PoissonSampled(0.1, Gaussian(0.0)), 3)])
def test_without_noise_every_accountant_answers_infinity(event: Event) -> None:
    assert {answer.epsilon for answer in answers(event, delta=DELTA)} == {math.inf}
    assert bound(event, delta=DELTA).epsilon == math.inf


def test_nothing_costs_nothing() -> None:
    assert bound(Composed(()), delta=DELTA).epsilon == 0


def test_arguments_are_checked_by_name() -> None:
    for delta in (0.0, 1.0, -1e-5, math.nan, "1e-5", True):
        with pytest.raises(InvalidValue, match=r"^delta"):
            bound(RUN, delta=delta)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"^event"):
        bound("a run", delta=DELTA)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"^adjacency"):
        bound(RUN, delta=DELTA, adjacency="replace-one")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedEvent, match=r"pld: .*rdp-balle20: .*tan: "):
        bound(RUN, delta=DELTA, adjacency=REPLACE)


def test_a_claim_is_proven_and_names_its_premises() -> None:
    found = claim(RUN, delta=DELTA)
    assert found.is_proven
    assert found.epsilon == bound(RUN, delta=DELTA).epsilon
    assert {IDEAL_ARITHMETIC, TRUE_RECORD_COUNT} <= set(found.premises)
    assert TRUE_RECORD_COUNT not in claim(Gaussian(3.0), delta=DELTA).premises
    selected = claim(RepeatAndSelect(RUN, mean=5.0), delta=DELTA)
    assert set(selected.premises) - set(found.premises) == {SECRET_REPETITIONS}
    assert "Papernot & Steinke" in selected.theorem
    assert "Papernot & Steinke" not in found.theorem


@pytest.mark.parametrize("settings", sizes(30, whole=250))
def test_epsilon_is_never_nan_negative_or_missing_in_the_whole_box(settings: int) -> None:
    for drawn in in_the_whole_box(settings, seed=1):
        given = {answer.accountant: answer.epsilon for answer in answers(drawn.event, delta=drawn.delta)}
        assert all(epsilon is not None and epsilon >= 0 for epsilon in given.values()), (given, drawn)
        pld, balle20, gdp = (given[name] or 0.0 for name in ("pld", "rdp-balle20", "gdp"))
        assert math.isfinite(pld), drawn
        assert pld <= balle20 * (1 + 1e-12), drawn
        # For much noise the central limit is close to the truth, so a pld far below it would have lost some mass.
        assert drawn.noise_multiplier < 3 or pld >= 0.98 * gdp, drawn


@pytest.mark.parametrize("settings", sizes(15, whole=500))
def test_pld_is_below_balle20_is_below_mironov17(settings: int) -> None:
    compared = 0
    for drawn in in_usual_ranges(3000, seed=2):
        given = {answer.accountant: answer.epsilon or 0.0 for answer in answers(drawn.event, delta=drawn.delta)}
        if 0.1 <= given["pld"] <= 20:
            assert given["pld"] <= given["rdp-balle20"] <= given["rdp-mironov17"], drawn
            compared += 1
        if compared == settings:
            return
    pytest.fail(f"only {compared} of {settings} settings were in range")


# ε after every step

STEPS: dict[str, Event] = {
    "sampled": PoissonSampled(512 / 60_000, Gaussian(1.23)),
    "unsampled": Gaussian(30.0),
    "two kinds": Composed((PoissonSampled(0.01, Gaussian(1.2)), PoissonSampled(0.005, Gaussian(1.3)))),
    "free at first": PoissonSampled(1e-5, Gaussian(3.0)),
    "with a pure mechanism": Composed((PoissonSampled(512 / 60_000, Gaussian(1.23)), PureDP(0.01))),
    "selection": RepeatAndSelect(Gaussian(20.0), mean=3.0),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_curve_is_never_below_the_bound_and_within_half_a_percent(name: str) -> None:
    largest = 4 if name == "selection" else 600
    curve = EpsilonCurve(STEPS[name], delta=DELTA, largest_steps=largest)
    for steps in (0, 1, 2, 3, 17, 150, 151, 599, largest):
        if steps <= largest:
            exact = bound(Repeated(STEPS[name], steps), delta=DELTA).epsilon if steps else 0.0
            assert exact * (1 - 1e-4) <= curve.at(steps) <= exact * 1.005 + 1e-12, steps
    assert curve.at(largest) == bound(Repeated(STEPS[name], largest), delta=DELTA).epsilon


def test_every_step_in_turn_is_never_below_the_bound_and_within_half_a_percent() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=800)
    values = [curve.at(np.int64(steps)) for steps in range(801)]  # type: ignore[arg-type]
    assert all(earlier <= later for earlier, later in pairwise(values))
    for steps in (5, 99, 350, 351, 640, 799):
        exact = bound(Repeated(STEPS["sampled"], steps), delta=DELTA).epsilon
        assert exact * (1 - 1e-4) <= values[steps] <= exact * 1.005


def test_a_curve_of_few_points_has_no_flat_spots() -> None:
    curve = EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=10**6)
    for counts in (range(900, 950), range(0, 10**6 + 1, 100_000)):
        values = [curve.drawn_at(steps) for steps in counts]
        assert all(earlier < later for earlier, later in pairwise(values))
        assert math.isfinite(values[-1])


def test_a_curve_of_steps_that_only_the_renyi_accountant_counts() -> None:
    step = SampledWithoutReplacement(1000, 10, Gaussian(3.0))
    curve = EpsilonCurve(step, delta=DELTA, largest_steps=50, adjacency=REPLACE)
    exact = bound(Repeated(step, 20), delta=DELTA, adjacency=REPLACE).epsilon
    assert curve.at(20) == pytest.approx(exact, rel=1e-9)


def test_a_curve_of_steps_without_noise_is_infinite_from_the_first() -> None:
    curve = EpsilonCurve(Gaussian(0.0), delta=DELTA, largest_steps=10)
    assert [curve.at(steps) for steps in (0, 1, 10)] == [0, math.inf, math.inf]


def test_steps_outside_of_a_curve_are_refused() -> None:
    curve = EpsilonCurve(Gaussian(9.0), delta=DELTA, largest_steps=100)
    for steps in (-1, 101, 2.5, "7"):
        for ask in (curve.at, curve.drawn_at):
            with pytest.raises(InvalidValue, match=r"^steps"):
                ask(steps)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedEvent):
        EpsilonCurve(STEPS["sampled"], delta=DELTA, largest_steps=100, adjacency=REPLACE)


# Calibration


@given(limit=st.integers(1, 10**6), power=st.floats(0.2, 2.0))
def test_a_whole_value_is_found_to_the_unit(limit: int, power: float) -> None:
    found = last_within(
        lambda value: power * math.log(value / (limit + 0.5)), safe_end=1, other_end=10**6, start=1000, whole=True
    )
    assert found == limit


@given(limit=st.floats(1e-9, 0.99), power=st.floats(0.2, 2.0), falls=st.booleans())
def test_a_real_value_is_found_within_a_thousandth_and_from_inside(limit: float, power: float, falls: bool) -> None:
    power, ends = (-power, (1.0, 1e-10)) if falls else (power, (1e-10, 1.0))
    found = last_within(lambda value: power * math.log(value / limit), safe_end=ends[0], other_end=ends[1], start=0.01)
    assert found is not None
    assert -1e-3 <= power * math.log(found / limit) <= 0


def test_nothing_within_gives_none_and_everything_within_gives_the_other_end() -> None:
    assert last_within(lambda value: 1.0, safe_end=1, other_end=100, start=10) is None
    assert last_within(lambda value: -1.0, safe_end=1, other_end=100, start=10) == 100


def test_a_jump_over_the_limit_is_found_from_inside() -> None:
    found = last_within(
        lambda value: -OUT_OF_SIGHT if value < 50 else OUT_OF_SIGHT, safe_end=1, other_end=10**6, start=1000
    )
    assert found is not None
    assert 50 * (1 - 1e-9) < found < 50


def test_the_value_returned_was_itself_evaluated_and_found_within() -> None:
    seen: dict[float, float] = {}

    def noisy(value: float) -> float:
        seen[value] = math.log(value / 777) + 1e-4 * math.sin(1e6 * value)
        return seen[value]

    found = last_within(noisy, safe_end=1, other_end=10**6, start=1000)
    assert found is not None
    assert seen[found] <= 0


@pytest.mark.parametrize("reference", DPSGD)
def test_the_largest_steps_are_the_reference_values(reference: Reference) -> None:
    found = largest_steps(lambda steps: Repeated(reference.step, steps), Target(3.0, 1e-5))
    assert found == reference.steps_at_epsilon_3


@pytest.mark.parametrize("settings", sizes(1, whole=36))
def test_calibration_round_trips_over_the_whole_box(settings: int) -> None:
    assert sum(round_trips(drawn) for drawn in in_the_whole_box(settings, seed=21)) >= settings / 3


def round_trips(drawn: Drawn) -> bool:
    """False where nothing is lost, or nothing is left, at any neighbouring setting."""

    def at(**changed: Any) -> Event:
        return replace(drawn, **changed).event

    def spent(**changed: Any) -> float:
        return bound(at(**changed), delta=drawn.delta).epsilon

    epsilon = spent()
    if not 1e-6 < epsilon < 1e6:
        return False
    target = Target(epsilon, drawn.delta)
    sigma = smallest_noise_multiplier(lambda sigma: at(noise_multiplier=sigma), target)
    assert 0.999 * epsilon <= spent(noise_multiplier=sigma) <= epsilon, drawn
    smallest = SMALLEST_SAMPLING_PROBABILITY
    sample = largest_sample(lambda q: at(sampling_probability=q), target, smallest=smallest, largest=1.0)
    assert 0.999 * epsilon <= spent(sampling_probability=sample) <= epsilon, drawn
    steps = largest_steps(lambda steps: at(steps=steps), target)
    assert steps >= drawn.steps * 0.99, drawn
    assert spent(steps=steps) <= epsilon < spent(steps=steps + 1), drawn
    return True


def test_a_whole_sample_without_replacement_is_the_largest_that_fits() -> None:
    def run_at(size: float) -> Event:
        return Repeated(SampledWithoutReplacement(10_000, int(size), Gaussian(4.0)), 100)

    found = largest_sample(run_at, Target(1.0, 1e-5, REPLACE), smallest=1, largest=10_000, whole=True)
    assert found == int(found)
    assert bound(run_at(found + 1), delta=1e-5, adjacency=REPLACE).epsilon > 1.0
    every = largest_sample(run_at, Target(1e3, 1e-5, REPLACE), smallest=1, largest=10_000, whole=True)
    assert every == 10_000


def test_noise_next_to_a_pure_mechanism_is_the_least_that_does_not_overshoot() -> None:
    def run_at(sigma: float) -> Event:
        return Composed((PureDP(0.5), Repeated(PoissonSampled(0.01, Gaussian(sigma)), 100)))

    found = smallest_noise_multiplier(run_at, Target(1.0, DELTA))
    assert 0.999 <= bound(run_at(found), delta=DELTA).epsilon <= 1.0


def test_one_accountant_alone_decides_where_it_is_named() -> None:
    target = Target(3.0, 1e-5, accountant="rdp-mironov17")
    assert largest_steps(lambda steps: Repeated(DPSGD[0].step, steps), target) == DPSGD[0].steps
    with pytest.raises(InvalidValue, match=r"^accountant"):
        Target(3.0, 1e-5, accountant="oracle").log_ratio(RUN)


@pytest.mark.parametrize(
    "search, epsilon",
    [
        (lambda target: largest_steps(lambda steps: Repeated(Gaussian(0.5), steps), target), 1e-4),
        (lambda target: largest_steps(lambda n: Repeated(PoissonSampled(1e-6, Gaussian(100.0)), n), target), 1e9),
        (lambda target: smallest_noise_multiplier(lambda sigma: PoissonSampled(0.1, Gaussian(sigma)), target), 1e7),
        (lambda target: smallest_noise_multiplier(lambda sigma: Repeated(Gaussian(sigma), 10**6), target), 1e-12),
        (lambda target: largest_sample(lambda q: Gaussian(0.0), target, smallest=0.1, largest=1.0), 1.0),
    ],
)
def test_a_target_out_of_reach_is_refused(search: Callable[[Target], float], epsilon: float) -> None:
    with pytest.raises(Unreachable):
        search(Target(epsilon, 1e-12))


@pytest.mark.parametrize("name, wrong", [("epsilon", -1.0), ("epsilon", math.nan), ("delta", 1.0)])
def test_a_bad_target_is_refused_by_name(name: str, wrong: float) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}"):
        Target(**{"epsilon": 1.0, "delta": 1e-5, name: wrong})  # type: ignore[arg-type]


def test_other_than_three_numbers_are_refused() -> None:
    refuse_other_than_three(epsilon=1.0, steps=10, noise_multiplier=1.0, sampling_probability=None)
    for stated in (0, 1, 2, 4):
        with pytest.raises(InvalidValue, match="exactly three"):
            refuse_other_than_three(**{name: 1 if index < stated else None for index, name in enumerate("abcd")})


def test_a_package_without_metadata_does_not_cost_a_run_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    assert f"numpy {np.__version__}" in version()
    monkeypatch.setattr(metadata, "version", missing)
    assert "numpy of unknown version" in version()
