"""Poisson draws: their law, and that samplers with another law are found out by the same tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled
from lehr.errors import InvalidValue
from lehr.privacy import sampling
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from tests.privacy.sampling import laws
from tests.privacy.sampling.laws import KEY, RECORDS, Draw, Drawn, drawn

RATES = (0.005, 0.05, 0.4, 0.97)
ACCEPTED = 1e-3
REJECTED = 1e-6


@pytest.fixture(scope="module", params=RATES)
def at_rate(request: pytest.FixtureRequest) -> tuple[float, Drawn]:
    return request.param, drawn(laws.at_rate(request.param))


def test_the_size_of_a_draw_follows_the_binomial_law(at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    assert laws.batch_sizes(found, probability) > ACCEPTED


def test_every_record_is_drawn_at_its_rate(at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    assert laws.rates(found, probability) > ACCEPTED


def test_steps_are_independent(at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    assert laws.between_steps(found, probability) > ACCEPTED


def test_records_are_independent_at_every_distance_also_where_a_jump_is_cut(at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    cut = min(RECORDS // 2 - 1, max(1, int(math.log(16) / -math.log1p(-probability))))
    for distance in {1, 2, 7, max(1, cut - 1), cut, cut + 1}:
        assert laws.between_records(found, probability, distance=distance) > ACCEPTED / 4


@pytest.mark.parametrize(
    "law, wrong",
    [
        pytest.param(laws.batch_sizes, lambda q: laws.at_rate(1.1 * q), id="sizes, rate too high"),
        pytest.param(laws.batch_sizes, lambda q: laws.at_rate(0.9 * q), id="sizes, rate too low"),
        pytest.param(laws.batch_sizes, laws.of_fixed_size, id="sizes, fixed"),
        pytest.param(laws.batch_sizes, laws.shuffled, id="sizes, shuffled"),
        pytest.param(laws.batch_sizes, laws.in_pairs, id="sizes, pairs"),
        pytest.param(laws.rates, lambda q: laws.at_rate(1.1 * q), id="rates, too high"),
        pytest.param(laws.rates, lambda q: laws.at_rate(0.9 * q), id="rates, too low"),
        pytest.param(laws.rates, laws.shuffled, id="rates, shuffled"),
        pytest.param(laws.rates, laws.with_one_key_for_all_steps, id="rates, one key"),
        pytest.param(laws.between_steps, laws.shuffled, id="steps, shuffled"),
        pytest.param(laws.between_steps, laws.with_a_step_used_twice, id="steps, a step used twice"),
        pytest.param(laws.between_steps, laws.with_one_key_for_all_steps, id="steps, one key"),
        pytest.param(laws.between_records, laws.in_pairs, id="records, pairs"),
        pytest.param(laws.between_records, laws.without_neighbours, id="records, no neighbours"),
    ],
)
def test_a_wrong_sampler_is_found_out(law: Callable[[Drawn, float], float], wrong: Callable[[float], Draw]) -> None:
    probability = 0.05
    assert law(drawn(wrong(probability)), probability) < REJECTED


def test_the_probability_of_the_event_is_the_one_that_draws() -> None:
    sampling = PoissonSampling(expected_batch_size=512, records=60_000)
    assert sampling.sampling_probability == 512 / 60_000
    assert sampling.event(Gaussian(1.23)) == PoissonSampled(512 / 60_000, Gaussian(1.23))
    assert sampling.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert sampling.event(Gaussian(0.0)) == PoissonSampled(512 / 60_000, Gaussian(0.0))


@pytest.mark.parametrize("expected_batch_size", [0.3, 1.9, 7.5])
def test_a_batch_that_is_no_whole_number_is_drawn_as_often_as_its_event_says(expected_batch_size: float) -> None:
    sampling = PoissonSampling(expected_batch_size=expected_batch_size, records=100)
    charged, steps = sampling.event(Gaussian(1.0)).sampling_probability, 2000
    drawn = sum(len(sampling.draw(100, KEY.at(step, 0))) for step in range(steps))
    assert stats.binomtest(drawn, 100 * steps, charged).pvalue > ACCEPTED


def test_the_probability_comes_from_the_records_stated_and_not_from_those_held() -> None:
    sampling = PoissonSampling(expected_batch_size=30, records=100)
    sizes = [len(sampling.draw(50, KEY.at(step=step, attempt=0))) for step in range(400)]
    assert 14 < sum(sizes) / 400 < 16
    more = [len(sampling.draw(200, KEY.at(step=step, attempt=0))) for step in range(400)]
    assert 57 < sum(more) / 400 < 63


def test_a_draw_is_sorted_distinct_and_within_the_records() -> None:
    for step in range(50):
        places = PoissonSampling(40, 100).draw(100, KEY.at(step=step, attempt=0))
        assert places.dtype == torch.int64
        assert (places.diff() > 0).all()
        assert ((places >= 0) & (places < 100)).all()


def test_a_draw_depends_on_key_step_and_attempt_alone() -> None:
    sampling = PoissonSampling(40, 100)
    found = sampling.draw(100, KEY.at(step=7, attempt=2))
    assert found.equal(sampling.draw(100, KEY.at(step=7, attempt=2)))
    for other in (KEY.at(step=8, attempt=2), KEY.at(step=7, attempt=1), RunKey(bytes(32)).at(step=7, attempt=2)):
        assert not found.equal(sampling.draw(100, other))


def test_with_probability_one_everybody_is_drawn_and_of_nobody_nobody() -> None:
    assert PoissonSampling(5, 5).draw(5, KEY.at(step=0, attempt=0)).tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampling(5, 5).draw(0, KEY.at(step=0, attempt=0)).tolist() == []
    assert PoissonSampling(1, 5).draw(0, KEY.at(step=0, attempt=0)).tolist() == []


def test_with_a_small_probability_draws_are_empty_and_still_draws() -> None:
    sampling = PoissonSampling(0.01, 1000)
    sizes = {len(sampling.draw(1000, KEY.at(step=step, attempt=0))) for step in range(300)}
    assert sizes == {0, 1}


@pytest.mark.parametrize("probability", [5e-324, 1e-300, 1e-17, 1e-9])
def test_the_smallest_probabilities_draw_nobody_and_do_not_overflow(probability: float) -> None:
    sampling = PoissonSampling(expected_batch_size=max(5e-324, probability), records=1)
    assert sampling.draw(10**6, KEY.at(step=0, attempt=0)).tolist() == []


def test_a_probability_just_below_one_draws_everybody() -> None:
    assert len(PoissonSampling(math.nextafter(1, 0), 1).draw(1000, KEY.at(step=0, attempt=0))) == 1000


@dataclass(frozen=True, slots=True)
class Chosen(StepRandomness):
    """The randomness of a step with uniform numbers of one's choice, over and over."""

    row: tuple[float, ...] = ()

    def uniforms(self, purpose: str, count: int) -> Tensor:
        assert purpose == "sampling"
        return torch.tensor(self.row, dtype=torch.float64).repeat(count)[:count]


def chosen(*row: float) -> Chosen:
    return Chosen(key=KEY, step=0, attempt=0, row=row)


@given(probability=st.floats(1e-3, 15 / 16), num_passed=st.integers(1, 300), side=st.sampled_from([-1, 1]))
@example(probability=0.5, num_passed=1, side=1)
@example(probability=0.75, num_passed=2, side=-1)
@example(probability=1e-3, num_passed=300, side=1)
def test_so_many_records_are_passed_as_exact_fractions_say(probability: float, num_passed: int, side: int) -> None:
    """At least k records are passed before one is hit if u ≤ (1 - q) ** k, up to a rounding of one part in 2⁴⁹."""
    power = (1 - Fraction(probability)) ** num_passed
    beside = float(power * (1 + side * Fraction(1, 2**49)))
    rate = -math.log1p(-probability)
    longest = max(1, int(math.log(16) / rate))
    _, moved = sampling._places(torch.tensor([beside], dtype=torch.float64), rate=rate, longest=longest)
    assert moved == min(longest, num_passed + 1 if side < 0 else num_passed)


def test_a_jump_that_is_too_long_is_cut_and_draws_nobody() -> None:
    rate = -math.log1p(-0.1)
    smallest = 2.0**-53
    places, passed = sampling._places(torch.tensor([smallest, 0.99, smallest]), rate=rate, longest=26)
    assert places.tolist() == [26]
    assert passed == 26 + 1 + 26


def test_a_draw_goes_on_until_every_record_had_its_coin() -> None:
    largest = 1 - 2.0**-53
    everybody = PoissonSampling(1, 1000).draw(1000, chosen(largest))
    assert everybody.tolist() == list(range(1000))
    nobody = PoissonSampling(1, 1000).draw(1000, chosen(2.0**-53))
    assert nobody.tolist() == []


@pytest.mark.parametrize(
    "expected_batch_size, records",
    [
        (0, 10),
        (-1, 10),
        (math.nan, 10),
        (math.inf, 10),
        (11, 10),
        (5, 0),
        (5, 2.5),
        (5, True),
        ("5", 10),
        (1e-320, 9**18),
    ],
)
def test_a_probability_that_is_none_is_refused(expected_batch_size: float, records: int) -> None:
    with pytest.raises(InvalidValue):
        PoissonSampling(expected_batch_size=expected_batch_size, records=records)


@pytest.mark.parametrize("num_records", [-1, 2.5, math.nan])
def test_a_number_of_records_that_is_none_is_refused(num_records: int) -> None:
    with pytest.raises(InvalidValue, match="num_records"):
        PoissonSampling(1, 10).draw(num_records, KEY.at(step=0, attempt=0))
