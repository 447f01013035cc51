"""Rényi differential privacy: divergences of single events, and two ways to turn them into (ε, δ).

``mironov17`` is the classic rule over the whole orders 2 … 64, which SA-DPSGD and many papers use; ``balle20`` is the
tighter one, over fractional orders too. Both hold for the same events, among them two that no tight accountant counts
today: sampling without replacement (under replace-one) and repeated selection.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy import special

from lehr.accounting.closed_forms import SMALLEST_NOISE, SMALLEST_PROBABILITY, cut_probability
from lehr.accounting.events import (
    Adjacency,
    Atom,
    BallsInBins,
    Event,
    Gaussian,
    GroupPoissonSampled,
    Laplace,
    NonPrivate,
    PoissonSampled,
    PureDP,
    RenyiLimit,
    RepeatAndSelect,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    counted,
    counted_by_cycles,
)
from lehr.accounting.levels import with_fewer_levels
from lehr.errors import UnsupportedEvent

Floats = NDArray[np.float64]
Conversion = Callable[[Floats, Floats, float], Floats]

WHOLE_ORDERS = tuple(float(order) for order in range(2, 65))
FRACTIONAL_ORDERS = tuple(
    sorted({*WHOLE_ORDERS, *(1 + tenths / 10 for tenths in range(1, 100)), *(96.0, 128.0, 192.0, 256.0, 512.0, 1024.0)})
)

_LARGEST_ORDER_WITHOUT_REPLACEMENT = 256.0  # the work grows as the square of the order
_LARGEST_NOISE = 1e6  # more counts as this much
_SERIES_CUT_OFF = math.exp(-29.0)  # dp-accounting ends the series of a fractional order at terms of e⁻³⁰ of the sum
_SELECTION_ROUNDING = 1e-12
_ROUNDING_UNIT = 1e-15  # about five units in the last place of a double near one
_RESPONSE_ROUNDING = 1e-14  # relative, of a divergence of randomised response: some fifty units in the last place
_SMALLEST_EPSILON, _LARGEST_EPSILON = 1e-140, 1e200  # of randomised response; beyond, it counts as this, or infinite
_FLAT_EXPONENT = 1e3  # beyond it e^(−exponent) is no double
_SMALL_EXPONENT = 100.0  # its hyperbolic sine, squared, is still a double


def mironov17(orders: Floats, divergences: Floats, delta: float) -> Floats:
    """ε at each order by Proposition 3 of Mironov (2017)."""
    return divergences - math.log(delta) / (orders - 1)


def balle20(orders: Floats, divergences: Floats, delta: float) -> Floats:
    """ε at each order by Theorem 21 of Balle et al. (2020), also Proposition 12 of Canonne, Kamath & Steinke (2020)."""
    return divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)


@dataclass(frozen=True, slots=True)
class RenyiAccountant:
    """ε as the smallest over a fixed set of orders. Any set is valid: each order gives a bound of its own."""

    name: str
    orders: tuple[float, ...]
    convert: Conversion
    theorem: str
    is_estimate: bool = False
    proof: str = "accounting/rdp.proof.md"

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The smallest ε of all orders, at least zero."""
        return self.repeated(event, delta=delta, adjacency=adjacency)(1)

    def repeated(self, event: Event, *, delta: float, adjacency: Adjacency) -> Callable[[int], float]:
        """ε of the event repeated so many times; cheap to ask for many counts."""
        orders = np.asarray(self.orders)
        divergences = renyi_divergences(event, self.orders, adjacency, accountant=self.name)

        def epsilon(repeats: int) -> float:
            if _is_within_delta(repeats * divergences, delta):
                return 0.0
            return max(0.0, float(np.min(self.convert(orders, repeats * divergences, delta))))

        return epsilon


RDP_BALLE20 = RenyiAccountant(
    name="rdp-balle20",
    orders=FRACTIONAL_ORDERS,
    convert=balle20,
    theorem="Rényi composition (Mironov 2017, Proposition 1) and conversion (Balle et al. 2020, Theorem 21)",
)
RDP_MIRONOV17 = RenyiAccountant(
    name="rdp-mironov17",
    orders=WHOLE_ORDERS,
    convert=mironov17,
    theorem="Rényi composition and conversion (Mironov 2017, Propositions 1 and 3), whole orders 2 to 64",
)


def renyi_divergences(
    event: Event,
    orders: tuple[float, ...],
    adjacency: Adjacency,
    *,
    accountant: str = "rdp",
    only_these: bool = False,
) -> Floats:
    """An upper bound on the Rényi divergence of the event at each order; infinite where there is none.

    With ``only_these`` no other order is computed, which the accountants could share.
    """
    shared = not only_these and set(orders) <= set(FRACTIONAL_ORDERS)
    total = np.zeros(len(orders))
    for atom, count in with_fewer_levels(counted_by_cycles(event)).items():
        _refuse_uncountable(atom, adjacency, accountant)
        computed = set(FRACTIONAL_ORDERS if shared else orders)
        if isinstance(atom, RepeatAndSelect):  # its bound at one order is a minimum over the base event's other orders
            computed |= set(FRACTIONAL_ORDERS)
        if isinstance(atom, SampledWithoutReplacement):
            computed = {order for order in computed if order <= _LARGEST_ORDER_WITHOUT_REPLACEMENT}
        at = tuple(sorted(computed))
        known = dict(zip(at, _of_atom(atom, at, adjacency), strict=True))
        total += count * np.array([known.get(order, math.inf) for order in orders])
    return total


@lru_cache(maxsize=256)
def _of_atom(atom: Atom, orders: tuple[float, ...], adjacency: Adjacency) -> tuple[float, ...]:
    """Divergences of one atom. Where arithmetic cannot follow, that of the nearest atom that loses no less."""
    at = np.asarray(orders)
    match atom:
        case RenyiLimit():  # a divergence never falls with its order
            return tuple(np.where(at <= atom.order, atom.divergence, math.inf).tolist())
        case PureDP():
            return tuple(_randomised_response(atom.epsilon, at).tolist())
        case RepeatAndSelect() | TruncatedPoissonSampled():
            return tuple(_OF_PARTS[type(atom)](atom, orders, adjacency).tolist())
        case NonPrivate():
            sigma = 0.0
        case Gaussian() | Laplace():
            sigma = atom.noise_multiplier
        case PoissonSampled() | SampledWithoutReplacement():
            sigma = atom.event.noise_multiplier
    if sigma < SMALLEST_NOISE or not orders:
        return (math.inf,) * len(orders)
    sigma = min(sigma, _LARGEST_NOISE)
    if isinstance(atom, SampledWithoutReplacement) and atom.sample_size < atom.records:  # all records: no sampling
        # Theorem 27 also compares with a draw in which another record has the place: twice as far as one zeroed out.
        replaced = sigma / 2 if adjacency is Adjacency.ZERO_OUT else sigma
        return tuple(_without_replacement(atom.sample_size / atom.records, replaced, at).tolist())
    noise = dp_accounting.LaplaceDpEvent if isinstance(atom, Laplace) else dp_accounting.GaussianDpEvent
    event = noise(sigma)
    if isinstance(atom, PoissonSampled):
        event = dp_accounting.PoissonSampledDpEvent(max(atom.sampling_probability, SMALLEST_PROBABILITY), event)
    with _quiet_dp_accounting():
        reference = rdp.RdpAccountant(list(orders), _RELATION[adjacency])
        reference.compose(event)
    return tuple(_rounded_up(at, np.asarray(reference.rdp, dtype=float)).tolist())


def _truncated(atom: TruncatedPoissonSampled, orders: tuple[float, ...], adjacency: Adjacency) -> Floats:
    """A mixture of Poisson-sampled steps, of which the rarer one, where the batch is full, has half the noise."""
    halved = Gaussian(atom.event.noise_multiplier / 2)
    usual, other = (
        np.array(_of_atom(PoissonSampled(atom.sampling_probability, noise), orders, adjacency))
        for noise in (atom.event, halved)
    )
    is_cut, power = cut_probability(atom), np.asarray(orders) - 1
    if is_cut in (0.0, 1.0):
        return other if is_cut else usual
    log_sums = np.logaddexp(math.log1p(-is_cut) + power * usual, math.log(is_cut) + power * other)
    rounding = 8 * _ROUNDING_UNIT * (1 + np.abs(log_sums))
    return np.asarray(np.maximum((log_sums + rounding) / power, usual))  # the rarer one loses no less


def _rounded_up(orders: Floats, divergences: Floats) -> Floats:
    """Never below the truth: the series is a log of a sum with binomial terms of size e^log Γ(order + 1).

    Where the true value is smaller than the rounding of those terms, dp-accounting may return zero or less. The series
    of a fractional order is also cut off.
    """
    slack = _ROUNDING_UNIT * (1 + special.gammaln(orders + 1)) / (orders - 1)
    slack += np.where(orders % 1 == 0, 0.0, _SERIES_CUT_OFF / (orders - 1))
    return np.where(np.isnan(divergences), math.inf, np.maximum(divergences, 0.0) + slack)


def _randomised_response(epsilon: float, orders: Floats) -> Floats:
    """The Rényi divergence of randomised response at each order, never below the truth and never above ε.

    With a = (order − ½)·ε and b = ε/2 it is (log cosh a − log cosh b)/(order − 1).
    """
    if epsilon == 0 or epsilon > _LARGEST_EPSILON:
        return np.full(len(orders), 0.0 if epsilon == 0 else math.inf)
    epsilon = max(epsilon, _SMALLEST_EPSILON)
    exponent = min(epsilon, _FLAT_EXPONENT)
    more, less = (np.minimum(scale * exponent / 2, _SMALL_EXPONENT) for scale in (orders, orders - 1))
    near_one = np.log1p(2 * np.sinh(more) * np.sinh(less) / math.cosh(min(exponent / 2, _SMALL_EXPONENT)))
    rest = np.log1p(np.exp(-(2 * orders - 1) * exponent)) - math.log1p(math.exp(-exponent))
    divergences = np.where(more < _SMALL_EXPONENT, near_one / (orders - 1), epsilon + rest / (orders - 1))
    return np.asarray(np.minimum(divergences * (1 + _RESPONSE_ROUNDING), epsilon))


def _without_replacement(share: float, sigma: float, orders: Floats) -> Floats:
    """Theorem 27 of Wang, Balle & Kasiviswanathan (2019) at whole orders; between them log A is convex in the order."""
    largest = math.ceil(orders.max())
    differences = _log_differences(1 / sigma**2, largest + 1)
    log_terms = np.full(largest + 1, -math.inf)
    for j in range(2, largest + 1):
        mixed = math.log(4) + (differences[j - j % 2] + differences[j + j % 2]) / 2
        log_terms[j] = j * math.log(share) + min(mixed, math.log(2) + j * (j - 1) / (2 * sigma**2))
    log_a = np.zeros(largest + 1)
    for order in range(2, largest + 1):
        log_sum = special.logsumexp(log_terms[: order + 1] + _log_binomials(order))
        rounding = _ROUNDING_UNIT * (order + 2) * (10 + np.abs(log_terms[2 : order + 1]).max())
        log_a[order] = np.logaddexp(0.0, log_sum) * (1 + rounding)
    below = np.floor(orders).astype(int)
    above = np.ceil(orders).astype(int)
    return np.asarray((log_a[below] + (orders - below) * (log_a[above] - log_a[below])) / (orders - 1))


def _log_differences(precision: float, largest: int) -> Floats:
    """log D(l) for D(l) = Σ_i (−1)^(l−i)·C(l, i)·e^(i·(i−1)·precision/2), from positive terms alone.

    With u = e^precision: D(l + 1) = (u^l − 1)·D(l) + Σ_(k<l) C(l, k)·u^k·(u − 1)^(l−k)·D(k).
    """
    found = np.full(largest + 1, -math.inf)
    found[0] = 0.0
    log_step = _log_expm1(precision)
    for length in range(1, largest):
        k = np.arange(length)
        terms = _log_binomials(length)[:-1] + k * precision + (length - k) * log_step + found[:length]
        found[length + 1] = special.logsumexp([*terms, _log_expm1(length * precision) + found[length]])
    return found


@lru_cache(maxsize=512)
def _log_binomials(order: int) -> Floats:
    return np.array([math.log(math.comb(order, j)) for j in range(order + 1)])


def _log_expm1(value: float) -> float:
    return value + math.log(-math.expm1(-value))


def _selection_divergences(atom: RepeatAndSelect, orders: tuple[float, ...], adjacency: Adjacency) -> Floats:
    """Theorems 2 and 6 of Papernot & Steinke (2022), from the divergences of one run at the same orders."""
    at = np.asarray(orders)
    of_one_run = renyi_divergences(atom.event, orders, adjacency, only_these=True)
    if atom.shape is None:
        extra = atom.mean * np.array([_delta_at(math.log1p(1 / (order - 1)), at, of_one_run) for order in orders])
    else:
        log_gamma = _log_gamma(math.log(atom.mean), atom.shape)
        extra = np.asarray((1 + atom.shape) * np.min((1 - 1 / at) * of_one_run - log_gamma / at))
    found = (of_one_run + extra + math.log(atom.mean) / (at - 1)) * (1 + _SELECTION_ROUNDING)
    return np.asarray(np.minimum.accumulate(found[::-1])[::-1])  # a divergence never falls with its order


def _delta_at(epsilon: float, orders: Floats, divergences: Floats) -> float:
    """δ of one run at ε: the conversions of ``balle20`` and ``_is_within_delta``, solved for δ."""
    with np.errstate(over="ignore"):
        log_deltas = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
        return float(min(np.exp(log_deltas.min()), np.sqrt(-np.expm1(-divergences.min()))))


def _log_gamma(log_mean: float, shape: float) -> float:
    """log γ of the truncated negative binomial law with this mean, from below: bisection on t = −log γ.

    The mean, shape·(e^t − 1)/(1 − e^(−shape·t)), or (e^t − 1)/t at shape 0, grows with t and is at least (e^t − 1)/t.
    """
    low, high = 0.0, 2 * log_mean + 2
    for _ in range(80):
        t = (low + high) / 2
        log_tail = math.log(-math.expm1(-shape * t) / shape) if shape * t > 1e-12 else math.log(t)
        low, high = (t, high) if _log_expm1(t) - log_tail < log_mean else (low, t)
    return -(high + _SELECTION_ROUNDING)


def _is_within_delta(divergences: Floats, delta: float) -> bool:
    """Total variation is at most √(1 − e^(−KL)) (Bretagnolle & Huber 1979), and every order bounds KL."""
    return bool(np.any(-np.expm1(-divergences) <= delta**2))


def _refuse_uncountable(atom: Atom, adjacency: Adjacency, accountant: str) -> None:
    match atom:
        case PoissonSampled() | TruncatedPoissonSampled() if adjacency is Adjacency.REPLACE_ONE:
            reason = "Poisson sampling is not counted under replace-one"
        case SampledWithoutReplacement() if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            reason = "sampling without replacement keeps the number of records public: replace-one or zero-out"
        case TruncatedPoissonSampled() if adjacency is Adjacency.ZERO_OUT:
            reason = "truncated batches have no Rényi bound here under zero-out; the accountant pld counts them"
        case BallsInBins():
            reason = "epochs of balls-in-bins sampling have no Rényi bound here; the accountant pld counts them"
        case GroupPoissonSampled():
            reason = "groups of records have no Rényi bound here; the accountant pld counts them"
        case RepeatAndSelect() if any(isinstance(part, RenyiLimit) for part in counted(atom.event)):
            reason = "selection among runs is counted for runs whose events were fixed beforehand"
        case RepeatAndSelect():
            for part in counted(atom.event):
                _refuse_uncountable(part, adjacency, accountant)
            return
        case _:
            return
    raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)


_OF_PARTS: dict[type, Callable[..., Floats]] = {
    RepeatAndSelect: _selection_divergences,
    TruncatedPoissonSampled: _truncated,
}
_RELATION = {
    Adjacency.ADD_OR_REMOVE_ONE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    Adjacency.ZERO_OUT: dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
}


@contextmanager
def _quiet_dp_accounting() -> Iterator[None]:
    """It warns of orders whose series does not converge; they come back as infinite and drop out of the minimum."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        logger.setLevel(level)
