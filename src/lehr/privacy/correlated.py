"""Correlated noise: what is added at a step is in part subtracted at later ones, so that sums of steps have less of it.

C is a lower triangular Toeplitz matrix. With z independent standard normal numbers, step t releases

    x_t + σ·s·w_t    with    w = C⁻¹·z

- ``CorrelatedNoise``: C has b bands, c_0, …, c_(b-1), whose squares add up to at most one (Choquette-Choo et al. 2023,
  "(Amplified) Banded Matrix Factorization"): w_t = (z_t - c_1·w_(t-1) - … - c_(b-1)·w_(t-b+1)) / c_0. The last b - 1
  of the w are kept in memory and never written to a file: they come from the key of the run, and can be computed again.
- ``InverseCorrelatedNoise``: C⁻¹ has b bands (Kalinin et al. 2025, "Back to Square Roots"): w_t = e_0·z_t + … +
  e_(b-1)·z_(t-b+1), each z made again at each step. No noise is kept.
- ``band_coefficients``, ``inverse_band_coefficients``: the coefficients with the least error of the weights
- ``relative_error``: that error, relative to independent noise
- ``tree_aggregation_error``: that of tree aggregation, to compare with
- ``CyclicPoissonSampling``: each record is in one of several groups at random, and step t draws from group t modulo
  their number. A record then enters at most once in so many steps.

The proof is ``privacy/correlated.proof.md``. One band is independent noise.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, signal
from torch import Tensor

from lehr import validate
from lehr.accounting.events import CorrelatedSteps, Gaussian, InverseCorrelatedSteps
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, Tensors, at_least_float32
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import PoissonSampling

Floats = NDArray[np.float64]

GROUPS = "groups"  # the purpose of the numbers that put records into groups
_MOST_STEPS = 4096  # of the run that coefficients are optimised for; beyond it they hardly change
_MOST_STEPS_OF_INVERSE = 16_384
_SCALE = 1000.0  # of the variables of the search, so that its first step is short
_DIGITS = 6  # of optimised coefficients, so that rounding elsewhere does not change them
_BELOW_ONE = 1 - 2**-40  # the norm of the coefficients, so that rounding does not put it above one


# Coefficients.


@lru_cache(maxsize=16)
def band_coefficients(*, bands: int, steps: int, momentum: float = 0.0) -> tuple[float, ...]:
    """Return the coefficients of C, whose squares add up to at most one.

    They minimise the mean squared error of what SGD with ``momentum`` makes of the first t releases, over all t up to
    ``steps``; without momentum that is their sum. The search begins at the coefficients of the square root of the
    matrix of these sums (Fichtenberger et al. 2023), cut off after ``bands``, and returns those where it finds nothing
    better.

    >>> [round(value, 3) for value in band_coefficients(bands=3, steps=100)]
    [0.719, 0.532, 0.447]
    """
    bands = min(validate.count(bands=bands), validate.count(steps=steps))
    workload = workload_column(min(steps, _MOST_STEPS), momentum=momentum)
    first = square_root_coefficients(bands, momentum=momentum)
    if bands == 1:
        return (1.0,)
    limits = [(0.0, 1.0)] * (bands - 1)  # beyond them the error may be infinite
    with np.errstate(all="ignore"):
        found = optimize.minimize(_log_error, first[1:], args=(workload,), jac=True, method="L-BFGS-B", bounds=limits)
        best = np.concatenate([[1.0], np.round(found.x, _DIGITS)])
        if not _log_error(best[1:], workload)[0] < _log_error(first[1:], workload)[0]:
            best = first
    norm = math.sqrt(math.fsum(value**2 for value in best.tolist()))
    return tuple(value / norm * _BELOW_ONE for value in best.tolist())


@lru_cache(maxsize=16)
def inverse_band_coefficients(*, bands: int, steps: int, num_groups: int, momentum: float = 0.0) -> tuple[float, ...]:
    """Return the coefficients of C⁻¹, with which a record moves C·u by at most one in norm.

    They minimise the product of what ``band_coefficients`` minimises and of what a record moves that enters every
    ``num_groups`` steps. The search begins at the coefficients of the inverse square root of the matrix of the sums,
    with all those after ``bands`` added to the last.

    >>> [round(value, 3) for value in inverse_band_coefficients(bands=3, steps=100, num_groups=50)]
    [2.429, -1.129, -0.965]
    """
    bands = min(validate.count(bands=bands), validate.count(steps=steps))
    length = min(steps, _MOST_STEPS_OF_INVERSE)
    enters = _entries(length, num_groups)
    workload = workload_column(length, momentum=momentum)
    first = -inverse_coefficients(square_root_coefficients(bands, momentum=momentum), bands)[1:]
    best = np.ones(1)
    if bands > 1:
        first[-1] += max(0.0, 1 - 1 / math.sqrt(length) - float(first.sum()))
        with np.errstate(all="ignore"):
            found = optimize.minimize(
                lambda scaled: _log_inverse_error(scaled / _SCALE, workload, enters),
                _SCALE * first,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0.0, _SCALE)] * (bands - 1),
                options={"maxiter": 300, "maxcor": 20},
            )
            later = np.round(found.x / _SCALE, _DIGITS)
            if not _log_inverse_error(later, workload, enters)[0] < _log_inverse_error(first, workload, enters)[0]:
                later = first
        best = np.concatenate([best, 0.0 - later])
    norm = moved_by_record(tuple(best.tolist()), steps=steps, num_groups=num_groups)
    return tuple(value * (norm / _BELOW_ONE) for value in best.tolist())


def square_root_coefficients(bands: int, *, momentum: float = 0.0) -> Floats:
    """Return the coefficients of ((1 - x)·(1 - momentum·x))^(-1/2)."""
    later = np.arange(1, bands)
    plain = np.concatenate([[1.0], np.cumprod((2 * later - 1) / (2 * later))])  # binom(2k, k) / 4^k
    return np.convolve(plain, plain * _powers(momentum, bands))[:bands]


def workload_column(steps: int, *, momentum: float = 0.0) -> Floats:
    """Return what the weights have of a release after 1, 2, … steps of SGD with momentum, up to the learning rate.

    >>> workload_column(4, momentum=0.5)
    array([1.   , 1.5  , 1.75 , 1.875])
    """
    return np.cumsum(_powers(momentum, steps))


def inverse_coefficients(coefficients: Sequence[float] | Floats, steps: int) -> Floats:
    """Return the first column of the inverse of a lower triangular Toeplitz matrix with these coefficients."""
    impulse = np.zeros(steps)
    impulse[:1] = 1.0
    return np.asarray(signal.lfilter([1.0], coefficients, impulse), dtype=np.float64)


def moved_by_record(inverse: tuple[float, ...], *, steps: int, num_groups: int) -> float:
    """Return ‖Σ C_t‖, over the columns t = 0, ``num_groups``, …: what a record moves that enters at all of these.

    ``inverse`` are the coefficients of C⁻¹. It is rounded up. No other entries move more: ``correlated.proof.md``.
    """
    moved = signal.lfilter([1.0], inverse, _entries(steps, num_groups))
    rounding = (steps + 2) * (len(inverse) + 2) * 2.0**-52  # sums of numbers ≥ 0, each a product and a sum away
    return math.sqrt(math.fsum((moved**2).tolist())) * (1 + 2 * rounding)


def relative_error(column: Floats, *, momentum: float = 0.0) -> float:
    """Return the root mean squared error of all weights over that of independent noise, from the first column of C⁻¹.

    Both have the same noise multiplier. At the same ε they do not: records are drawn from one group.

    >>> round(relative_error(inverse_coefficients(band_coefficients(bands=8, steps=500), 500)), 3)
    0.385
    """
    workload = workload_column(len(column), momentum=momentum)
    of_sums = signal.fftconvolve(workload, column)[: len(column)]
    return math.sqrt(float(np.mean(np.cumsum(of_sums**2)) / np.mean(np.cumsum(workload**2))))


def _powers(momentum: float, count: int) -> Floats:
    if not validate.non_negative(momentum=momentum) < 1:
        raise InvalidValue("momentum", allowed="from 0 to below 1", given=momentum)
    return np.asarray(float(momentum) ** np.arange(count), dtype=np.float64)


def _entries(steps: int, num_groups: int) -> Floats:
    """Return one at the steps 0, ``num_groups``, …, and zero at the others."""
    enters = np.zeros(steps)
    enters[:: validate.count(num_groups=num_groups)] = 1.0
    return enters


def _log_error(later: Floats, workload: Floats) -> tuple[float, Floats]:
    """Return log(‖c‖²·Σ_t (steps - t)·a_t²) for c = (1, later) and a = A·C⁻¹, and its gradient."""
    coefficients, steps = np.concatenate([[1.0], later]), len(workload)
    errors = signal.lfilter([1.0], coefficients, workload)
    weighted = np.arange(steps, 0, -1) * errors
    squared_norm, total = float(coefficients @ coefficients), float(weighted @ errors)
    if not math.isfinite(total):
        return math.inf, np.zeros_like(later)
    moved = signal.lfilter([1.0], coefficients, errors)  # minus the derivative by coefficient k, k steps earlier
    slopes = np.array([weighted[k:] @ moved[: steps - k] for k in range(1, len(coefficients))])
    return math.log(squared_norm * total), 2 * later / squared_norm - 2 * slopes / total


def _log_inverse_error(later: Floats, workload: Floats, enters: Floats) -> tuple[float, Floats]:
    """Return log(‖C·enters‖²·Σ_t (steps - t)·a_t²) for C⁻¹ of (1, -later) and a = A·C⁻¹, with its scaled gradient."""
    inverse, steps = np.concatenate([[1.0], -later]), len(workload)
    sums = signal.lfilter([1.0], inverse, enters)
    errors = signal.lfilter(inverse, [1.0], workload)
    weighted = np.arange(steps, 0, -1) * errors
    squared_norm, total = float(sums @ sums), float(weighted @ errors)
    if not (math.isfinite(squared_norm) and math.isfinite(total)):
        return math.inf, np.zeros_like(later)
    moved = signal.lfilter([1.0], inverse, sums)  # the derivative of the sums by coefficient k, k steps earlier
    later_steps = range(1, len(inverse))
    of_norm = np.array([sums[k:] @ moved[: steps - k] for k in later_steps])
    of_errors = np.array([weighted[k:] @ workload[: steps - k] for k in later_steps])
    return math.log(squared_norm * total), (2 * of_norm / squared_norm - 2 * of_errors / total) / _SCALE


# Noise.


@dataclass(slots=True)
class _Memory:
    """The last numbers w of one stream, newest first, and how many steps of it there were."""

    stream: Any = None
    steps: int = 0
    outputs: deque[dict[str, Tensor]] = field(default_factory=deque)


@dataclass(frozen=True)
class CorrelatedNoise(IsotropicNoise):
    """Noise of a run with bands: at step t, ``noise_multiplier * sensitivity`` times row t of C⁻¹·z.

    It is a function of the run's key, the attempt and the step. What is in memory only saves computing it again.
    """

    coefficients: tuple[float, ...]
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, *, bands: int, steps: int, num_groups: int | None = None, momentum: float = 0.0) -> Self:
        """Return the noise of a run with these bands and steps; there are at least as many groups as bands."""
        if num_groups is not None and not num_groups >= bands:
            raise InvalidValue("num_groups", allowed=f"at least {bands}, the bands", given=num_groups)
        return cls(band_coefficients(bands=bands, steps=steps, momentum=momentum))

    def __post_init__(self) -> None:
        squares = math.fsum(value**2 for value in self.coefficients)
        if not (squares <= 1 and self.coefficients[0] > 0):
            allowed = "numbers whose squares add up to at most 1, the first above zero"
            raise InvalidValue("coefficients", allowed=allowed, given=self.coefficients)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: ComponentState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        """Return the sum with its noise, added once for the whole draw. The noise does not depend on the values."""
        scale = validate.positive(noise_std=self.noise_std(private, noise_multiplier, state or {}))
        noise = self.correlated(randomness, private.values, purpose=purpose)
        return ReleasedSum(
            values={
                name: (value + scale * noise[name]).to(at_least_float32(value.dtype))
                for name, value in private.values.items()
            },
            noise_std=scale * self.deviation(randomness.step),
            noise_multiplier=noise_multiplier,
        )

    def correlated(self, randomness: StepRandomness, like: Tensors, *, purpose: str = "noise") -> dict[str, Tensor]:
        """Return w at a step. Earlier ones that are not in memory are computed again, from step 0 on."""
        memory = self._memory
        shapes = tuple((name, value.shape, value.device) for name, value in like.items())
        stream = (replace(randomness, step=0), purpose, shapes)
        if memory.stream != stream or memory.steps > randomness.step:
            memory.stream, memory.steps = stream, 0
            memory.outputs = deque(maxlen=max(1, len(self.coefficients) - 1))
        while memory.steps <= randomness.step:
            fresh = replace(randomness, step=memory.steps).normals(purpose, like)
            memory.outputs.appendleft(self._next(fresh, memory.outputs))
            memory.steps += 1
        return memory.outputs[0]

    def column(self, steps: int) -> Floats:
        """Return the first column of C⁻¹."""
        return inverse_coefficients(self.coefficients, steps)

    def deviation(self, step: int) -> float:
        """Return the standard deviation of w at a step."""
        return float(np.linalg.norm(self.column(step + 1)))

    def _next(self, fresh: dict[str, Tensor], outputs: deque[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return w from z of the same step and the outputs before it, newest first."""
        values = list(fresh.values())
        for coefficient, earlier in zip(self.coefficients[1:], outputs, strict=False):  # the first steps have fewer
            torch._foreach_add_(values, list(earlier.values()), alpha=-coefficient)
        torch._foreach_div_(values, self.coefficients[0])
        return dict(zip(fresh, values, strict=True))


@dataclass(frozen=True)
class InverseCorrelatedNoise(CorrelatedNoise):
    """Noise of a run where the inverse C⁻¹ has the bands, and ``coefficients``. Nothing is kept between two steps.

    A record enters at most once in ``num_groups`` steps, always as many steps apart, in a run of ``steps``.
    """

    num_groups: int = field(kw_only=True)
    steps: int = field(kw_only=True)

    @classmethod
    def of(cls, *, bands: int, steps: int, num_groups: int | None = None, momentum: float = 0.0) -> Self:
        """Return the noise of a run with these bands, steps and groups; without them, for one entry of a record."""
        groups = steps if num_groups is None else num_groups
        found = inverse_band_coefficients(bands=bands, steps=steps, num_groups=groups, momentum=momentum)
        return cls(found, num_groups=groups, steps=steps)

    def __post_init__(self) -> None:
        first, *later = self.coefficients
        is_allowed = 0 < first < math.inf and all(-math.inf < value <= 0 for value in later)
        moved = moved_by_record(self.coefficients, steps=self.steps, num_groups=self.num_groups) if is_allowed else 0.0
        if not (is_allowed and moved <= 1):
            allowed = "a first number above zero and none after it, by whose inverse a record moves at most 1"
            raise InvalidValue("coefficients", allowed=allowed, given=self.coefficients)

    def correlated(self, randomness: StepRandomness, like: Tensors, *, purpose: str = "noise") -> dict[str, Tensor]:
        """Return w at a step, from the z of this step and of those before it."""
        if not randomness.step < self.steps:
            raise InvalidValue("step", allowed=f"below {self.steps}, where the run ends", given=randomness.step)
        found = randomness.normals(purpose, like)
        values = list(found.values())
        torch._foreach_mul_(values, self.coefficients[0])
        for back, coefficient in enumerate(self.coefficients[1 : randomness.step + 1], 1):
            if coefficient:
                earlier = list(replace(randomness, step=randomness.step - back).normals(purpose, like).values())
                torch._foreach_add_(values, earlier, alpha=coefficient)
                del earlier  # so that it is not held while the next one is made
        return found

    def column(self, steps: int) -> Floats:
        """Return the first column of C⁻¹."""
        padded = np.zeros(max(steps, len(self.coefficients)))
        padded[: len(self.coefficients)] = self.coefficients
        return padded[:steps]


# Sampling.


@dataclass(frozen=True, kw_only=True)
class CyclicPoissonSampling(PoissonSampling):
    """Poisson sampling from one of ``num_groups`` groups in turn, as many as there are bands.

    The group of a record is drawn once for the run, from the run's key, independently of all other records.
    ``expected_batch_size`` is that of a step, so that the records of its group enter with ``num_groups`` times the
    probability of ordinary sampling. With ``inverse_bands``, those of the inverse, there is no rule for the number of
    groups, and the probability counts as one.
    """

    num_groups: int
    steps: int
    inverse_bands: int | None = None

    def __post_init__(self) -> None:
        PoissonSampling.__post_init__(self)
        validate.count(num_groups=self.num_groups)
        validate.count(steps=self.steps)
        if not self.num_groups * self.expected_batch_size <= self.records:
            allowed = f"at most {self.records / self.expected_batch_size:g}, the records over the batch size"
            raise InvalidValue("num_groups", allowed=allowed, given=self.num_groups)

    @cached_property
    def within_group(self) -> PoissonSampling:
        """How records are drawn from the group of a step."""
        return PoissonSampling(expected_batch_size=self.num_groups * self.expected_batch_size, records=self.records)

    def event(self, released: Gaussian) -> CorrelatedSteps | InverseCorrelatedSteps:  # type: ignore[override]
        """Return the event of all steps: they have no events of their own."""
        if self.inverse_bands is not None:
            return InverseCorrelatedSteps(self.steps, self.inverse_bands, self.num_groups, released)
        return CorrelatedSteps(
            steps=self.steps,
            bands=self.num_groups,
            sampling_probability=self.within_group.sampling_probability,
            event=released,
        )

    def groups(self, num_records: int, randomness: StepRandomness) -> Tensor:
        """Return the group of each record, the same at every step of an attempt."""
        uniforms = replace(randomness, step=0).uniforms(GROUPS, num_records)
        return (uniforms * self.num_groups).long().clamp_max_(self.num_groups - 1)

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order. Steps after the last one are refused."""
        if not randomness.step < self.steps:
            raise InvalidValue("step", allowed=f"below {self.steps}, where the run ends", given=randomness.step)
        drawn = self.within_group.draw(num_records, randomness, purpose=purpose)
        return drawn[self.groups(num_records, randomness)[drawn] == randomness.step % self.num_groups]
