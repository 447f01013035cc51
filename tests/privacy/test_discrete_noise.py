"""Discrete noise: its law is exact, sums on the grid move no further than is charged, and its bits tell nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from lehr import fit, make_plan
from lehr.accounting.accountant import answers, bound, claim
from lehr.accounting.claims import CRYPTOGRAPHIC_BITS, EXACT_ARITHMETIC, IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, Standing
from lehr.accounting.events import Composed, Event, Gaussian, PoissonSampled, Repeated, RoundedGaussian
from lehr.attacks.step_attack import attack
from lehr.auditing import Verdict
from lehr.auditing.bounds import clopper_pearson
from lehr.auditing.scores import Scores
from lehr.certificates.certificate import read_certificate
from lehr.certificates.checking import mismatches
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum
from lehr.methods.by_name import named
from lehr.privacy import rounded_normal
from lehr.privacy.noise import DiscreteNoise, IsotropicNoise, on_grid, with_rounding
from lehr.privacy.rng import RunKey
from lehr.privacy.rounded_normal import alias_table, candidates, cells_and_places, first_bits, settle, weights
from lehr.run.mechanism import Mechanism
from lehr.run.sharded import Layout, ShardRandomness
from tests.attacks.sabotage import keys_of, scale_noise

KEY = RunKey(bytes(range(32)))
STEP = KEY.at(step=0, attempt=0)
CPU = torch.device("cpu")
FULL = 2**rounded_normal.COIN_BITS
TAIL = 2**rounded_normal.COLUMN_BITS - 1
GOLDEN = [1253637053602, 214810169310, 1268360091446, 2460267740724, 190423915706, 1445848414592]
GRID = 2.0**-rounded_normal.SCALE_BITS


def integers(count: int, *, step: int = 0, purpose: str = "noise") -> Tensor:
    return KEY.at(step=step, attempt=0).rounded_normals(purpose, {"all": torch.empty(count)})["all"]


# The sampler.


def test_the_alias_table_has_exactly_the_weights() -> None:
    thresholds, others = (table.tolist() for table in alias_table(CPU))
    found = [0] * len(thresholds)
    for column, (threshold, other) in enumerate(zip(thresholds, others, strict=True)):
        found[column] += threshold
        found[other] += FULL - threshold
    assert tuple(found) == weights().of_cells
    assert sum(found) == FULL * 2**rounded_normal.COLUMN_BITS


@pytest.mark.parametrize("cell", [0, 1, 2, 1000, 2048, 12_287, 20_000, TAIL - 1])
def test_a_weight_is_the_density_at_the_lower_end_of_its_cell_or_just_above(cell: int) -> None:
    with localcontext() as context:
        context.prec = 100
        density = weights().scale * (-(Decimal(cell) ** 2) / 2**23).exp()
        weight = Decimal(weights().of_cells[cell])
        assert density <= weight <= density * (1 + Decimal(10) ** -30) + 1


def test_the_tail_has_more_weight_than_its_densities_need() -> None:
    # One block of 2⁴⁰ after another, each proposed half as often as the one before.
    for block in range(40):
        with localcontext() as context:
            context.prec = 60
            start = Decimal((TAIL << rounded_normal.CELL_BITS) + (block << 40)) / 2**40
            density = weights().scale * (-(start**2) / 2).exp()
            assert density * 2**11 * 2 ** (block + 1) < weights().of_cells[TAIL]


def decided(words: Tensor, index: int, rest: int) -> bool:
    one = words[:, index : index + 1]
    cell, place = map(int, cells_and_places(one))
    return settle(cell, place, int(first_bits(one)), lambda _, num_bytes: bytes([rest]) * num_bytes) is not None


def test_what_floating_point_decides_is_so_whatever_the_further_digits_are() -> None:
    words = torch.from_numpy(np.random.default_rng(0).integers(-(2**63), 2**63, size=(2, 2**19)))
    found = candidates(words)
    rejected = (~found.is_accepted & ~found.is_unsettled).nonzero().squeeze(1).tolist()
    close = ((first_bits(words) < 2000) & found.is_accepted).nonzero().squeeze(1).tolist()
    assert len(rejected) > 50
    assert len(close) > 500
    for index in (*rejected[:100], *close[:500]):
        assert {decided(words, index, rest) for rest in (0, 255)} == {bool(found.is_accepted[index])}


def test_digits_decide_next_to_the_probability_of_rejection() -> None:
    cell, place = 4000, 2**28
    drop = place * (2 * (cell << 29) + place) / 2**81
    first = math.floor(-math.expm1(-drop) * 2**20)
    words = torch.tensor([[0], [(cell << 49) + (first << 29) + place]])
    thresholds, _ = alias_table(CPU)
    assert thresholds[cell] > 0  # a coin of zero keeps the column's own cell
    found = candidates(words)
    assert found.is_unsettled.tolist() == [True]
    assert (decided(words, 0, 0), decided(words, 0, 255)) == (False, True)


def test_a_far_candidate_is_accepted_with_the_probability_that_its_weight_lacks() -> None:
    scale, of_cells = weights()
    cell = next(cell for cell, weight in enumerate(of_cells) if weight == 1)  # its density has less than one
    share = scale * math.exp(-(cell**2) / 2**23)
    bits = np.random.default_rng(1)
    streams: dict[tuple[int, str], bytes] = {}

    def more(trial: int, name: str, num_bytes: int) -> bytes:
        streams.setdefault((trial, name), bits.bytes(64))
        return streams[trial, name][:num_bytes]

    trials = 2000
    accepted = sum(
        settle(cell, 0, int(bits.integers(2**20)), lambda name, n, trial=trial: more(trial, name, n)) is not None  # type: ignore[misc]
        for trial in range(trials)
    )
    assert stats.binomtest(accepted, trials, min(share, 1.0)).pvalue > 1e-4
    assert stats.binomtest(accepted, trials, 0.9 * share).pvalue < 1e-4


def test_a_candidate_of_the_tail_goes_on_block_by_block() -> None:
    def more(name: str, num_bytes: int) -> bytes:
        if name == "block":
            return (b"\x10" + bytes(num_bytes))[:num_bytes]  # three zeros and a one
        return b"\x01" * num_bytes if name == "place" else b"\xff" * num_bytes

    start = TAIL << 29
    assert settle(TAIL, 77, 2**20 - 1, more) == start + (3 << 40) + 0x01_01_01_01_01
    assert settle(TAIL, 77, 0, more) is None  # a density of 2⁻¹⁸⁵, and so nearly always


def test_the_integers_are_gaussian_and_a_law_that_is_off_is_rejected() -> None:
    found = integers(2**20)
    normal = found.double().numpy() * GRID
    assert stats.kstest(normal[: 2**17], "norm").pvalue > 1e-4
    square = float((normal**2).sum())
    assert 1e-4 < stats.chi2.cdf(square, len(normal)) < 1 - 1e-4
    assert stats.chi2.sf(1.01**2 * square, len(normal)) < 1e-4
    for beyond in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(beyond) * len(normal)
        assert 1e-5 < stats.poisson.cdf((np.abs(normal) > beyond).sum(), expected) < 1 - 1e-5


def test_the_last_bits_and_the_places_in_cells_are_uniform() -> None:
    found = integers(2**18)
    for shift in (0, 8, 16, 21):  # the density hardly changes within 2²⁹
        counts = torch.bincount((found >> shift) & 255, minlength=256).numpy()
        assert stats.chisquare(counts).pvalue > 1e-5


def test_streams_are_independent_and_repeatable() -> None:
    here = integers(50_000)
    assert integers(50_000).equal(here)
    for other in (integers(50_000, step=1), integers(50_000, purpose="other")):
        correlation = float((here.double() * other.double()).mean()) * GRID**2
        assert abs(correlation) * math.sqrt(50_000) < 5


def test_the_integers_of_a_key_are_these_on_every_machine() -> None:
    assert integers(70_000)[[0, 1, 2, 65_535, 65_536, 69_999]].tolist() == GOLDEN


def test_a_rank_draws_the_integers_of_its_rows() -> None:
    shapes = {"a": torch.Size((5, 30_000)), "b": torch.Size((4, 3))}
    whole = STEP.rounded_normals("noise", {name: torch.empty(shape) for name, shape in shapes.items()})
    for number in range(2):
        layout = Layout(shapes=shapes, trained=("a", "b"), number=number, total=2)
        own = ShardRandomness(key=KEY, step=0, attempt=0, layout=layout)
        like = {name: torch.empty(layout.shape(name)) for name in shapes}
        for name, value in own.rounded_normals("noise", like).items():
            rows = layout.rows(name)
            assert value.equal(whole[name][rows.start : rows.stop])


# The noise.


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 5000),
    spread=st.sampled_from([1e-12, 1e-3, 1.0, 1e4]),
    multiplier=st.floats(0.05, 2.0**16),
)
@example(seed=0, size=5000, spread=0.0, multiplier=1.0)
def test_on_the_grid_a_record_moves_a_sum_no_further_than_is_charged(
    seed: int, size: int, spread: float, multiplier: float
) -> None:
    made = np.random.default_rng(seed)
    first = torch.from_numpy(spread * made.standard_normal(size))
    direction = torch.from_numpy(made.standard_normal(size))
    second = first + direction / direction.norm() * 0.1 * (1 - 2**-40)
    noise_std = DiscreteNoise().noise_std(PrivateSum(values={"w": first}, sensitivity=0.1), multiplier, {})
    moved = (on_grid(second, noise_std) - on_grid(first, noise_std)).double().norm()
    assert moved * multiplier <= 2.0**40


def test_rounding_that_goes_apart_at_every_coordinate_is_charged() -> None:
    noise_std, size = 1.0, 1_000_000
    half = torch.full((size,), 0.5 * GRID, dtype=torch.float64)
    moved = on_grid(torch.nextafter(half, 2 * half), noise_std) - on_grid(half, noise_std)
    assert moved.double().norm() == 1000  # √d steps of the grid
    plain = with_rounding(1.0)
    enlarged = DiscreteNoise().noise_std(PrivateSum(values={"w": half}, sensitivity=1.0), 1.0, {})
    assert 1 - plain / enlarged > 2.0**20 * GRID  # √d for 2⁴⁰ coordinates, the most that are allowed for


def test_the_enlargement_is_below_one_percent_at_usual_noise() -> None:
    private = PrivateSum(values={"w": torch.zeros(1)}, sensitivity=0.7)
    for multiplier in (0.3, 1.0, 20.0, 1000.0):
        ratio = DiscreteNoise().noise_std(private, multiplier, {}) / (0.7 * multiplier)
        assert 1 < ratio < 1.001


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_is_released_is_the_integer_sum_and_its_noise(dtype: torch.dtype) -> None:
    values = {"w": torch.linspace(-3, 3, 1000, dtype=torch.float64).to(dtype), "b": torch.zeros(7, dtype=dtype)}
    found = DiscreteNoise().release(PrivateSum(values=values, sensitivity=0.5), noise_multiplier=1.5, randomness=STEP)
    assert isinstance(found.noise_std, float)
    step = found.noise_std * GRID
    noise = STEP.rounded_normals("noise", values)
    for name, value in values.items():
        exact = noise[name] + torch.round(value.double() / found.noise_std * 2**40).long()
        assert found.values[name].dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
        assert found.values[name].equal((exact.double() * step).to(found.values[name].dtype))
    assert found.noise_multiplier == 1.5


def test_values_that_are_no_numbers_or_too_large_stay_within_the_integers() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 1e300, 1.0], dtype=torch.float64)
    assert on_grid(values, 1.0).tolist() == [0, 2**61, -(2**61), 2**61, 2**40]


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf, 2.0**16 + 1])
def test_a_multiplier_that_it_cannot_give_is_refused(multiplier: float) -> None:
    private = PrivateSum(values={"w": torch.zeros(3)}, sensitivity=1.0)
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        DiscreteNoise().release(private, noise_multiplier=multiplier, randomness=STEP)


# What is counted and claimed.


@pytest.mark.parametrize("wrap", [lambda noise: noise, lambda noise: Repeated(PoissonSampled(0.01, noise), 500)])
def test_every_accountant_counts_a_rounded_gaussian_as_the_gaussian(wrap: object) -> None:
    assert callable(wrap)
    rounded, plain = wrap(RoundedGaussian(1.1)), wrap(Gaussian(1.1))
    assert rounded != plain
    assert answers(rounded, delta=1e-5) == answers(plain, delta=1e-5)


def test_the_claim_says_that_arithmetic_is_met_and_what_the_bits_rest_on() -> None:
    step: Event = PoissonSampled(0.01, RoundedGaussian(1.1))
    premises = claim(Repeated(step, 100), delta=1e-5).premises
    assert EXACT_ARITHMETIC in premises
    assert EXACT_ARITHMETIC.standing is Standing.MET
    assert CRYPTOGRAPHIC_BITS in premises
    assert not {IDEAL_ARITHMETIC, IDEAL_RANDOMNESS} & set(premises)


@pytest.mark.parametrize("other", [Gaussian(3.0), PoissonSampled(0.1, Gaussian(3.0))])
def test_noise_in_floating_point_beside_it_takes_that_away(other: Event) -> None:
    event = Composed((PoissonSampled(0.01, RoundedGaussian(1.1)), other))
    assert {IDEAL_ARITHMETIC, IDEAL_RANDOMNESS} <= set(claim(event, delta=1e-5).premises)
    assert {IDEAL_ARITHMETIC, IDEAL_RANDOMNESS} <= set(claim(Composed(()), delta=1e-5).premises)


def test_a_plan_for_other_noise_is_refused() -> None:
    plan = make_plan(epsilon=3.0, delta=1e-5, records=1000, expected_batch_size=100, steps=30)
    for method in (named("dpsgd"), named("dpsgd", noise="discrete")):
        is_other = method.noise.kind == "discrete"
        if is_other:
            with pytest.raises(InvalidValue, match="plan"):
                Mechanism.of(method, plan)
        else:
            Mechanism.of(method, plan)


def test_a_run_with_discrete_noise_has_a_certificate_that_holds(tmp_path: Path) -> None:
    made = torch.Generator().manual_seed(0)
    inputs = torch.randn(300, 6, generator=made)
    run = fit(
        nn.Linear(6, 2),
        (inputs, (inputs[:, 0] > 0).long()),
        records=300,
        num_classes=2,
        epsilon=3.0,
        delta=1e-4,
        batch_size=60,
        steps=20,
        noise="discrete",
        settings_chosen_on="fixed",
        directory=tmp_path / "run",
        device="cpu",
        quiet=True,
    )
    assert run.proven.epsilon <= 3.0
    certificate = read_certificate(tmp_path / "run" / "certificate.json")
    assert mismatches(certificate) == ()
    assert not {IDEAL_ARITHMETIC.statement, IDEAL_RANDOMNESS.statement} & set(certificate.assumptions)
    assert CRYPTOGRAPHIC_BITS.statement in certificate.assumptions


# Attacks.

MULTIPLIER, RELEASES, WINDOW = 5.0, 1_000_000, 2.0**-7


def bit_scores(noise: IsotropicNoise, *, value: float, step: int) -> np.ndarray:
    """Whether each release of a sum, the same at every coordinate, is what floating point makes of noise plus one.

    A release near zero is noise near -1 plus the record's 1. Noise near -1 is a multiple of 2⁻⁵³, and the addition is
    exact (Sterbenz's lemma); a release of noise alone has as many bits below that as it is smaller (Mironov 2012).
    """
    private = PrivateSum(values={"w": torch.full((RELEASES,), value, dtype=torch.float64)}, sensitivity=1.0)
    released = noise.release(private, noise_multiplier=MULTIPLIER, randomness=KEY.at(step=step, attempt=0)).values["w"]
    is_near = released.abs() < WINDOW
    is_multiple = torch.fmod(released, 2.0**-53) == 0
    return (is_near & is_multiple).double().numpy()


def grid_scores(noise: IsotropicNoise, *, value: float, step: int) -> np.ndarray:
    """Whether each release between -1 and 0 is an odd multiple of 2⁻⁵¹, of a sum that is quantised to integers.

    Noise between -4 and -3 is any multiple of 2⁻⁵¹, and stays one when 3 is added; noise between -5 and -4 is a
    multiple of 2⁻⁵⁰. So the grid of a release tells the size of the sum below it (Haney et al. 2022).
    """
    private = PrivateSum(values={"w": torch.full((RELEASES,), value, dtype=torch.float64)}, sensitivity=1.0)
    released = noise.release(private, noise_multiplier=MULTIPLIER, randomness=KEY.at(step=step, attempt=0)).values["w"]
    return ((released > -1) & (released < 0) & (torch.fmod(released, 2.0**-50) != 0)).double().numpy()


Attack = tuple[Callable[..., np.ndarray], float, float]  # scores, and the sums with and without a record


def attacked(noise: IsotropicNoise, by: Attack) -> tuple[float, float, float]:
    """How often the attack says "member" of a member and of another, and the ε that this certifies."""
    scores, *sums = by
    members, others = (scores(noise, value=value, step=step) for step, value in enumerate(sums))
    found = clopper_pearson(Scores(members, others), delta=1e-9, threshold=0.5)
    return float(members.mean()), float(others.mean()), found.epsilon


@pytest.mark.parametrize("by", [(bit_scores, 1.0, 0.0), (grid_scores, 3.0, 4.0)], ids=["last bits", "quantised sums"])
def test_the_bits_of_ordinary_noise_refute_its_claim_and_those_of_discrete_noise_do_not(by: Attack) -> None:
    claimed = bound(Gaussian(MULTIPLIER), delta=1e-9).epsilon
    members, others, epsilon = attacked(IsotropicNoise(), by)
    assert members > 50 * others
    assert epsilon > 1.5 * claimed
    members, others, epsilon = attacked(DiscreteNoise(), by)
    assert epsilon <= claimed
    assert by[0] is bit_scores or min(members, others) > 0.01  # the grid is there whatever the sum


def last_bits(*, value: float, step: int) -> Tensor:
    """The last eight bits of the integers that are released, of a sum that is the same at every coordinate."""
    private = PrivateSum(values={"w": torch.full((2**18,), value, dtype=torch.float64)}, sensitivity=1.0)
    found = DiscreteNoise().release(private, noise_multiplier=MULTIPLIER, randomness=KEY.at(step=step, attempt=0))
    assert isinstance(found.noise_std, float)
    whole = torch.round(found.values["w"] / (found.noise_std * GRID)).long()
    return torch.bincount(whole & 255, minlength=256)


def test_the_last_bits_of_released_integers_are_the_same_for_every_sum() -> None:
    tables = [last_bits(value=value, step=step) for step, value in enumerate((0.0, 1.0, 1 / 3))]
    assert stats.chi2_contingency(torch.stack(tables).numpy()).pvalue > 1e-4
    assert all(stats.chisquare(table.numpy()).pvalue > 1e-5 for table in tables)


@pytest.mark.parametrize("is_halved", [False, True])
def test_an_audit_at_epsilon_three_comes_close_and_refutes_half_the_noise(
    is_halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = named("dpsgd", noise="discrete")
    plan = make_plan(epsilon=3.0, delta=1e-5, records=1000, expected_batch_size=500, steps=30, noise=method.noise.kind)
    if is_halved:
        scale_noise(monkeypatch, 0.5)
    audit = attack(method, plan, num_canaries=16_384, keys=keys_of("discrete noise"))
    assert (audit.verdict is Verdict.REFUTED) == is_halved
    if not is_halved:
        assert audit.decisive.epsilon > 0.8 * audit.claimed_epsilon
