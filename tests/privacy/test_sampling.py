"""Draws: their law, and that samplers of another law are detected by the same tests; physical batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from lehr.accounting.events import (
    Adjacency,
    BallsInBins,
    Gaussian,
    PoissonSampled,
    RoundedGaussian,
    SampledWithoutReplacement,
)
from lehr.errors import InvalidValue
from lehr.privacy import sampling
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import (
    BallsInBinsSampling,
    PoissonSampling,
    TruncatedPoissonSampling,
    WithoutReplacement,
    adjacency_of,
    counted_under,
    physical,
)
from tests.privacy import sampling_laws as laws
from tests.privacy.sampling_laws import KEY, RECORDS, Draw, Drawn, drawn

RATES = (0.005, 0.05, 0.4, 0.97)
ACCEPTED = 1e-3
REJECTED = 1e-6
STEP = KEY.at(step=0, attempt=0)


# --- Poisson sampling -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=RATES)
def at_rate(request: pytest.FixtureRequest) -> tuple[float, Drawn]:
    return request.param, drawn(laws.at_rate(request.param))


@pytest.mark.parametrize("law", [laws.batch_sizes, laws.rates, laws.between_steps], ids=lambda law: law.__name__)
def test_draws_follow_the_law(law: Callable[[Drawn, float], float], at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    assert law(found, probability) > ACCEPTED


def test_records_are_independent_at_every_distance(at_rate: tuple[float, Drawn]) -> None:
    probability, found = at_rate
    cut = min(RECORDS // 2 - 1, max(1, int(math.log(16) / -math.log1p(-probability))))  # where a jump is cut
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
def test_a_wrong_sampler_is_detected(law: Callable[[Drawn, float], float], wrong: Callable[[float], Draw]) -> None:
    probability = 0.05
    assert law(drawn(wrong(probability)), probability) < REJECTED


@pytest.mark.parametrize("expected_batch_size", [0.3, 1.9, 7.5])
def test_a_fractional_batch_size_is_drawn_as_its_event_states(expected_batch_size: float) -> None:
    sampling = PoissonSampling(expected_batch_size=expected_batch_size, records=100)
    charged, steps = sampling.event(Gaussian(1.0)).sampling_probability, 2000
    total = sum(len(sampling.draw(100, KEY.at(step, 0))) for step in range(steps))
    assert stats.binomtest(total, 100 * steps, charged).pvalue > ACCEPTED


def test_the_probability_follows_the_stated_number_of_records() -> None:
    sampling = PoissonSampling(expected_batch_size=30, records=100)
    for held, low, high in ((50, 14, 16), (200, 57, 63)):
        assert low < sum(len(sampling.draw(held, KEY.at(step=step, attempt=0))) for step in range(400)) / 400 < high
    assert sampling.sampling_probability == 30 / 100
    for noise in (1.23, 0.0):
        assert sampling.event(Gaussian(noise)) == PoissonSampled(0.3, Gaussian(noise))


@pytest.mark.parametrize(
    "sampler, records",
    [
        (PoissonSampling(40, 100), 100),
        *((WithoutReplacement(size, 10), 10) for size in (1, 5, 9, 10)),
        (WithoutReplacement(777, 100_000), 100_000),
        (WithoutReplacement(4990, 5000), 5000),
    ],
    ids=str,
)
def test_a_draw_is_sorted_and_follows_key_step_and_attempt(sampler: sampling.Sampling, records: int) -> None:
    found = sampler.draw(records, KEY.at(step=7, attempt=2))
    assert found.dtype == torch.int64
    assert (found.diff() > 0).all()
    assert 0 <= int(found[0]) <= int(found[-1]) < records
    assert found.equal(sampler.draw(records, KEY.at(step=7, attempt=2)))
    if isinstance(sampler, WithoutReplacement):
        assert len(found) == sampler.sample_size
    if records >= 100:
        for other in (KEY.at(step=8, attempt=2), KEY.at(step=7, attempt=1), RunKey(bytes(32)).at(step=7, attempt=2)):
            assert not found.equal(sampler.draw(records, other))


def test_extreme_probabilities() -> None:
    assert PoissonSampling(5, 5).draw(5, STEP).tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampling(5, 5).draw(0, STEP).tolist() == PoissonSampling(1, 5).draw(0, STEP).tolist() == []
    assert len(PoissonSampling(math.nextafter(1, 0), 1).draw(1000, STEP)) == 1000
    for probability in (5e-324, 1e-300, 1e-17, 1e-9):
        assert PoissonSampling(expected_batch_size=probability, records=1).draw(10**6, STEP).tolist() == []
    rarely = PoissonSampling(0.01, 1000)
    assert {len(rarely.draw(1000, KEY.at(step=step, attempt=0))) for step in range(300)} == {0, 1}


@dataclass(frozen=True, slots=True)
class Chosen(StepRandomness):
    """The randomness of a step with chosen uniform numbers, repeated."""

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
def test_gaps_are_those_of_exact_fractions(probability: float, num_passed: int, side: int) -> None:
    """At least k records are passed before one is hit if u ≤ (1 - q) ** k, up to a rounding of one part in 2⁴⁹."""
    power = (1 - Fraction(probability)) ** num_passed
    near = float(power * (1 + side * Fraction(1, 2**49)))
    rate = -math.log1p(-probability)
    longest = max(1, int(math.log(16) / rate))
    _, moved = sampling._indices(torch.tensor([near], dtype=torch.float64), rate=rate, longest=longest)
    assert moved == min(longest, num_passed + 1 if side < 0 else num_passed)


def test_long_jumps_are_cut_and_every_record_has_its_coin() -> None:
    smallest, largest = 2.0**-53, 1 - 2.0**-53
    uniforms = torch.tensor([smallest, 0.99, smallest])
    indices, passed = sampling._indices(uniforms, rate=-math.log1p(-0.1), longest=26)
    assert (indices.tolist(), passed) == ([26], 26 + 1 + 26)
    assert PoissonSampling(1, 1000).draw(1000, chosen(largest)).tolist() == list(range(1000))
    assert PoissonSampling(1, 1000).draw(1000, chosen(smallest)).tolist() == []


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
def test_impossible_probabilities_are_refused(expected_batch_size: float, records: int) -> None:
    with pytest.raises(InvalidValue):
        PoissonSampling(expected_batch_size=expected_batch_size, records=records)
    for num_records in (-1, 2.5, math.nan):
        with pytest.raises(InvalidValue, match="num_records"):
            PoissonSampling(1, 10).draw(num_records, STEP)  # type: ignore[arg-type]


# --- Without replacement --------------------------------------------------------------------------------------------


def p_value_of_equally_likely_sets(sets: Sequence[tuple[int, ...]], *, records: int, size: int) -> float:
    possible = list(combinations(range(records), size))
    return float(stats.chisquare([sets.count(each) for each in possible]).pvalue)


@pytest.mark.parametrize("records, size", [(7, 3), (7, 5), (6, 3), (5, 1)])
def test_every_set_is_equally_likely(records: int, size: int) -> None:
    sampler = WithoutReplacement(sample_size=size, records=records)
    sets = [tuple(sampler.draw(records, KEY.at(step=step, attempt=0)).tolist()) for step in range(3000)]
    assert p_value_of_equally_likely_sets(sets, records=records, size=size) > ACCEPTED


def test_windows_of_neighbours_are_not_equally_likely() -> None:
    starts = (STEP.uniforms("start", 3000) * 5).long().tolist()
    windows = [(start, start + 1, start + 2) for start in starts]
    assert p_value_of_equally_likely_sets(windows, records=7, size=3) < REJECTED


def test_repeated_indices_are_skipped() -> None:
    few = chosen(0.05, 0.05, *[0.05] * 60, 0.95, 0.55, 0.15)
    assert sampling._distinct(3, 10, few, "sampling").tolist() == [0, 9, 5]
    assert sampling._distinct(1, 3, chosen(1 - 2.0**-53), "sampling").tolist() == [2]


def test_the_event_without_replacement_is_relative_to_a_replaced_record() -> None:
    sampler = WithoutReplacement(sample_size=10, records=100)
    assert sampler.event(Gaussian(3.0)) == SampledWithoutReplacement(100, 10, Gaussian(1.5))
    assert sampler.event(Gaussian(0.0)) == SampledWithoutReplacement(100, 10, Gaussian(0.0))
    assert (sampler.sampling_probability, sampler.expected_batch_size) == (0.1, 10)
    for num_records in (0, 99, 101):
        with pytest.raises(InvalidValue, match="num_records"):
            sampler.draw(num_records, STEP)


@pytest.mark.parametrize("sample_size, records", [(0, 5), (6, 5), (2.5, 5), (math.nan, 5), (1, 0), (True, 5)])
def test_impossible_samples_are_refused(sample_size: int, records: int) -> None:
    with pytest.raises(InvalidValue):
        WithoutReplacement(sample_size=sample_size, records=records)


# --- By name, and physical batches ----------------------------------------------------------------------------------


def test_each_sampling_has_its_adjacency() -> None:
    assert adjacency_of("poisson") is PoissonSampling.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert adjacency_of("without-replacement") is WithoutReplacement.adjacency is Adjacency.REPLACE_ONE
    assert adjacency_of("truncated-poisson", "zero-out") is Adjacency.ZERO_OUT
    for name, wrong in (("poisson", "zero-out"), ("without-replacement", "add-or-remove-one")):
        with pytest.raises(InvalidValue, match=r"^adjacency"):
            adjacency_of(name, wrong)
    add, replace = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE
    assert counted_under(add, expected_batch_size=2.5, records=10) == PoissonSampling(2.5, 10)
    assert counted_under(replace, expected_batch_size=2.0, records=10) == WithoutReplacement(2, 10)
    for size in (2.5, math.inf, math.nan):
        with pytest.raises(InvalidValue, match="whole number"):
            counted_under(replace, expected_batch_size=size, records=10)


@pytest.mark.parametrize("name", ["shuffled", "shuffle", "epochs", "shuffled-epochs", "stratified", ["poisson"]])
def test_shuffled_epochs_are_refused_with_the_reason(name: str) -> None:
    is_shuffled = name in ("shuffled", "shuffle", "epochs", "shuffled-epochs")
    with pytest.raises(InvalidValue, match="understates ε" if is_shuffled else "poisson, without-replacement; given"):
        adjacency_of(name)


@given(indices=st.lists(st.integers(0, 10**9), max_size=40, unique=True).map(sorted), size=st.integers(1, 12))
def test_masked_records_are_the_draw_and_every_batch_has_the_size(indices: list[int], size: int) -> None:
    for is_padded in (True, False):
        batches = physical(torch.tensor(indices, dtype=torch.int64), size, is_padded=is_padded)
        assert [index for batch in batches for index in batch.indices_P[batch.mask_P].tolist()] == indices
        assert not any(batch.indices_P[~batch.mask_P].any() for batch in batches)  # padding can be fetched: record 0
        assert len(batches) == max(1, -(-len(indices) // size))
        num_places = size * len(batches) if is_padded else max(1, len(indices))
        assert sum(len(batch.mask_P) for batch in batches) == num_places
        assert all(batch.indices_P.shape == batch.mask_P.shape for batch in batches)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_impossible_sizes_of_physical_batches_are_refused(size: int) -> None:
    with pytest.raises(InvalidValue, match="size"):
        physical(torch.tensor([1]), size)


# --- Truncated Poisson sampling -------------------------------------------------------------------------------------

TRUNCATED = TruncatedPoissonSampling(expected_batch_size=20, records=100, largest_batch=22)


def test_no_draw_is_larger_than_the_largest_batch_and_smaller_ones_are_not_cut() -> None:
    whole = PoissonSampling(expected_batch_size=20, records=100)
    sizes = set()
    for step in range(200):
        drawn, uncut = (sampling.draw(100, KEY.at(step, 0)).tolist() for sampling in (TRUNCATED, whole))
        assert set(drawn) <= set(uncut)
        assert len(drawn) == min(len(uncut), 22)
        sizes.add(len(uncut) > 22)
    assert sizes == {True, False}


def test_every_record_is_cut_equally_often() -> None:
    steps = 3000
    counts = torch.zeros(100, dtype=torch.float64)
    for step in range(steps):
        counts[TRUNCATED.draw(100, KEY.at(step, 0))] += 1
    rate = float(counts.mean()) / steps
    assert rate < 0.195  # of 0.2 without a cut
    assert float(((counts - steps * rate).abs() / math.sqrt(steps * rate * (1 - rate))).max()) < 4.5


def test_more_records_than_stated_are_not_drawn_from() -> None:
    TRUNCATED.draw(90, KEY.at(0, 0))
    with pytest.raises(InvalidValue, match=r"^records must be"):
        TRUNCATED.draw(101, KEY.at(0, 0))


@pytest.mark.parametrize("largest_batch", [0, 19, 101])
def test_a_largest_batch_below_the_expected_one_or_above_all_records_is_refused(largest_batch: int) -> None:
    with pytest.raises(InvalidValue, match=r"^largest_batch must be"):
        TruncatedPoissonSampling(expected_batch_size=20, records=100, largest_batch=largest_batch)


# --- Balls in bins --------------------------------------------------------------------------------------------------

BINS, BALLS = 5, 60
EPOCHS = 400

Bins = Callable[[int, int], list[int]]  # the records of a step, from its epoch and its position


def balls_in_bins(epoch: int, position: int) -> list[int]:
    sampler = BallsInBinsSampling(bins=BINS, records=BALLS)
    return sampler.draw(BALLS, KEY.at(BINS * epoch + position, 0)).tolist()


def fresh_at_each_step(epoch: int, position: int) -> list[int]:
    step = BINS * epoch + position
    return (KEY.at(step, 0).uniforms("sampling", BALLS) * BINS).long().eq(position).nonzero().squeeze(1).tolist()


def equal_bins(epoch: int, position: int) -> list[int]:
    order = KEY.at(epoch, 0).uniforms("sampling", BALLS).argsort()
    size = BALLS // BINS
    return order[size * position : size * (position + 1)].sort().values.tolist()


def by_index(epoch: int, position: int) -> list[int]:
    return list(range(position, BALLS, BINS))


def one_assignment_for_all_epochs(epoch: int, position: int) -> list[int]:
    return balls_in_bins(0, position)


def skewed(epoch: int, position: int) -> list[int]:
    numbers = KEY.at(BINS * epoch, 0).uniforms("sampling", BALLS)
    return (numbers.pow(1.2) * BINS).long().eq(position).nonzero().squeeze(1).tolist()


def broken_laws(draw: Bins) -> set[str]:
    """Which parts of the law of balls in bins these draws break."""
    chosen = torch.full((EPOCHS, BALLS), -1)
    times = torch.zeros(EPOCHS, BALLS, dtype=torch.int64)
    for epoch in range(EPOCHS):
        for position in range(BINS):
            places = torch.tensor(draw(epoch, position), dtype=torch.int64)
            chosen[epoch, places] = position
            times[epoch, places] += 1
    found = set()
    if not bool((times == 1).all()):
        found.add("once")
    counts = torch.bincount(chosen.flatten() + 1, minlength=BINS + 1)[1:]
    if stats.chisquare(counts.numpy()).pvalue < REJECTED:
        found.add("uniform")
    of_records = torch.stack([(chosen == position).sum(0) for position in range(BINS)]).double()
    expected = EPOCHS / BINS
    if stats.chi2.sf(float(((of_records - expected) ** 2 / expected).sum()), BALLS * (BINS - 1)) < REJECTED:
        found.add("each record")
    sizes = (chosen == 0).sum(1).double()
    spread = float(sizes.var()) / (BALLS / BINS * (1 - 1 / BINS)) * (EPOCHS - 1)
    if not REJECTED < stats.chi2.sf(spread, EPOCHS - 1) < 1 - REJECTED:
        found.add("independent records")
    if stats.binomtest(int((chosen[1:] == chosen[:-1]).sum()), (EPOCHS - 1) * BALLS, 1 / BINS).pvalue < REJECTED:
        found.add("independent epochs")
    return found


def test_balls_in_bins_follow_the_law() -> None:
    assert broken_laws(balls_in_bins) == set()


@pytest.mark.parametrize(
    "wrong, law",
    [
        (fresh_at_each_step, "once"),
        (equal_bins, "independent records"),
        (by_index, "each record"),
        (one_assignment_for_all_epochs, "independent epochs"),
        (skewed, "uniform"),
    ],
)
def test_a_wrong_assignment_is_detected(wrong: Bins, law: str) -> None:
    assert law in broken_laws(wrong)


def test_every_step_of_an_epoch_has_the_assignment_of_its_first_step() -> None:
    sampler = BallsInBinsSampling(bins=4, records=100)
    placed = [sampler.draw(100, KEY.at(10 + position, 7), position=position).tolist() for position in range(4)]
    assert sorted(chain(*placed)) == list(range(100))  # an epoch may begin at any step
    assert placed[3] == sampler.draw(100, KEY.at(13, 7), position=3).tolist()
    assert placed[3] != sampler.draw(100, KEY.at(13, 8), position=3).tolist()


def test_a_record_more_changes_no_other_assignment() -> None:
    sampler = BallsInBinsSampling(bins=4, records=100)
    for step in range(8):
        fewer, more = (sampler.draw(held, KEY.at(step, 0)).tolist() for held in (99, 100))
        assert [place for place in more if place < 99] == fewer


def test_balls_in_bins_state_an_epoch_and_refuse_impossible_numbers() -> None:
    sampler = BallsInBinsSampling(bins=4, records=100)
    assert sampler.event(Gaussian(1.5)) == BallsInBins(4, Gaussian(1.5))
    assert sampler.draw(0, STEP).tolist() == []
    for bins, records in ((0, 10), (11, 10), (2.5, 10), (True, 10), (math.nan, 10), (2, 0)):
        with pytest.raises(InvalidValue):
            BallsInBinsSampling(bins=bins, records=records)  # type: ignore[arg-type]
    for position in (4, -1, 1.5):
        with pytest.raises(InvalidValue, match=r"^position must be"):
            sampler.draw(100, KEY.at(9, 0), position=position)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"^step must be"):  # the epoch would begin before the run
        sampler.draw(100, KEY.at(1, 0), position=2)


@pytest.mark.parametrize("bins", [1, 2, 3, 5, 7, 9, 31, 33, 1000, 65_537, 99_999])
def test_the_largest_uniform_number_is_in_the_last_bin(bins: int) -> None:
    assert int(torch.tensor(1 - 2.0**-53, dtype=torch.float64) * bins) == bins - 1


def test_shuffled_epochs_are_refused_with_a_replacement() -> None:
    with pytest.raises(InvalidValue, match="balls-in-bins"):
        adjacency_of("shuffled")
    assert adjacency_of("balls-in-bins") is Adjacency.ADD_OR_REMOVE_ONE
    made = counted_under(Adjacency.ADD_OR_REMOVE_ONE, expected_batch_size=25, records=100, bins=4)
    assert made == BallsInBinsSampling(bins=4, records=100)
    with pytest.raises(InvalidValue, match=r"^bins must be"):
        counted_under(Adjacency.REPLACE_ONE, expected_batch_size=25, records=100, bins=4)


def test_a_record_that_is_zeroed_out_has_the_noise_of_its_own_contribution() -> None:
    zeroed = counted_under(Adjacency.ZERO_OUT, expected_batch_size=10, records=100)
    assert zeroed.sensitivity_factor == 1
    for noise in (Gaussian(3.0), RoundedGaussian(3.0)):
        assert zeroed.event(noise) == SampledWithoutReplacement(records=100, sample_size=10, event=noise)
    cut = counted_under(Adjacency.ZERO_OUT, expected_batch_size=10, records=100, largest_batch=20)
    assert isinstance(cut, TruncatedPoissonSampling)
    with pytest.raises(InvalidValue, match=r"^adjacency"):
        WithoutReplacement(sample_size=10, records=100, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    with pytest.raises(InvalidValue, match=r"^bins"):
        counted_under(Adjacency.ZERO_OUT, expected_batch_size=25, records=100, bins=4)
