"""Correlated noise: what is added at a step is in part subtracted at later ones, so that sums of steps have less of it.

The banded matrix mechanism (Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization"). C is the lower
triangular Toeplitz matrix of b coefficients c_0, …, c_(b-1), whose squares add up to at most one. With z independent
standard normal numbers, step t releases

    x_t + σ·s·w_t    with    w = C⁻¹·z,    that is    w_t = (z_t - c_1·w_(t-1) - … - c_(b-1)·w_(t-b+1)) / c_0

- ``band_coefficients``: the coefficients with the least error of the sums of all first steps
- ``relative_error``: that error, relative to independent noise
- ``CorrelatedNoise``: adds σ·s·w_t. z comes from the key of the run, so that w can always be computed again: the last
  b - 1 of them are kept in memory and never written to a file.
- ``CyclicPoissonSampling``: each record is in one of b groups at random, and step t draws from group t mod b only. A
  record then enters at most once in b steps, and each of its columns of C moves other rows.

The proof is ``privacy/correlated.proof.md``. One band is independent noise.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, signal
from torch import Tensor

from lehr import validate
from lehr.accounting.events import CorrelatedSteps, Gaussian
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, Tensors, at_least_float32
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import PoissonSampling

Floats = NDArray[np.float64]

GROUPS = "groups"  # the purpose of the numbers that put records into groups
_MOST_STEPS = 4096  # of the run that coefficients are optimised for; beyond it they hardly change
_DIGITS = 6  # of optimised coefficients, so that rounding elsewhere does not change them
_BELOW_ONE = 1 - 2**-40  # the norm of the coefficients, so that rounding does not put it above one


# Coefficients.


@lru_cache(maxsize=16)
def band_coefficients(*, bands: int, steps: int) -> tuple[float, ...]:
    """Return the coefficients of C, whose squares add up to at most one.

    They minimise the mean squared error of the sums of the first t steps, over all t up to ``steps``. The search begins
    at the coefficients of the square root of the matrix of these sums (Fichtenberger et al. 2023), cut off after
    ``bands``, and returns those where it finds nothing better.

    >>> [round(value, 3) for value in band_coefficients(bands=3, steps=100)]
    [0.719, 0.532, 0.447]
    """
    bands = min(validate.count(bands=bands), validate.count(steps=steps))
    length = min(steps, _MOST_STEPS)
    first = square_root_coefficients(bands)
    if bands == 1:
        return (1.0,)
    limits = [(0.0, 1.0)] * (bands - 1)  # beyond them the error may be infinite
    with np.errstate(all="ignore"):
        found = optimize.minimize(_log_error, first[1:], args=(length,), jac=True, method="L-BFGS-B", bounds=limits)
        best = np.concatenate([[1.0], np.round(found.x, _DIGITS)])
        if not _log_error(best[1:], length)[0] < _log_error(first[1:], length)[0]:
            best = first
    norm = math.sqrt(math.fsum(value**2 for value in best.tolist()))
    return tuple(value / norm * _BELOW_ONE for value in best.tolist())


def square_root_coefficients(bands: int) -> Floats:
    """Return the coefficients of (1 - x)^(-1/2): binom(2k, k) / 4^k."""
    later = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * later - 1) / (2 * later))])


def inverse_coefficients(coefficients: tuple[float, ...], steps: int) -> Floats:
    """Return the first column of C⁻¹."""
    impulse = np.zeros(steps)
    impulse[:1] = 1.0
    return np.asarray(signal.lfilter([1.0], coefficients, impulse), dtype=np.float64)


def relative_error(coefficients: tuple[float, ...], steps: int) -> float:
    """Return the root mean squared error of the sums of all first steps over that of independent noise.

    Both have the same noise multiplier. At the same ε they do not: with b bands, records are drawn from one group.

    >>> round(relative_error(band_coefficients(bands=8, steps=500), 500), 3)
    0.385
    """
    independent = math.sqrt((steps + 1) / 2)
    of_sums = np.cumsum(inverse_coefficients(coefficients, steps))
    return math.sqrt(float(np.mean(np.cumsum(of_sums**2)))) / independent


def _log_error(later: Floats, steps: int) -> tuple[float, Floats]:
    """Return log(‖c‖²·Σ_t (steps - t)·e_t²) for c = (1, later) and e = A·C⁻¹, and its gradient."""
    coefficients = np.concatenate([[1.0], later])
    errors = signal.lfilter([1.0], coefficients, np.ones(steps))
    weighted = np.arange(steps, 0, -1) * errors
    squared_norm, total = float(coefficients @ coefficients), float(weighted @ errors)
    if not math.isfinite(total):
        return math.inf, np.zeros_like(later)
    moved = signal.lfilter([1.0], coefficients, errors)  # minus the derivative by coefficient k, k steps earlier
    slopes = np.array([weighted[k:] @ moved[: steps - k] for k in range(1, len(coefficients))])
    return math.log(squared_norm * total), 2 * later / squared_norm - 2 * slopes / total


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
    def of(cls, *, bands: int, steps: int) -> Self:
        """Return the noise of a run with these bands and steps."""
        return cls(band_coefficients(bands=bands, steps=steps))

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

    def deviation(self, step: int) -> float:
        """Return the standard deviation of w at a step."""
        return float(np.linalg.norm(inverse_coefficients(self.coefficients, step + 1)))

    def _next(self, fresh: dict[str, Tensor], outputs: deque[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return w from z of the same step and the outputs before it, newest first."""
        values = list(fresh.values())
        for coefficient, earlier in zip(self.coefficients[1:], outputs, strict=False):  # the first steps have fewer
            torch._foreach_add_(values, list(earlier.values()), alpha=-coefficient)
        torch._foreach_div_(values, self.coefficients[0])
        return dict(zip(fresh, values, strict=True))


# Sampling.


@dataclass(frozen=True, kw_only=True)
class CyclicPoissonSampling(PoissonSampling):
    """Poisson sampling from one of ``bands`` groups in turn.

    The group of a record is drawn once for the run, from the run's key, independently of all other records.
    ``expected_batch_size`` is that of a step, so that the records of its group enter with ``bands`` times the
    probability of ordinary sampling.
    """

    bands: int
    steps: int

    def __post_init__(self) -> None:
        PoissonSampling.__post_init__(self)
        validate.count(bands=self.bands)
        validate.count(steps=self.steps)
        if not self.bands * self.expected_batch_size <= self.records:
            allowed = f"at most {self.records / self.expected_batch_size:g}, the records over the batch size"
            raise InvalidValue("bands", allowed=allowed, given=self.bands)

    @cached_property
    def within_group(self) -> PoissonSampling:
        """How records are drawn from the group of a step."""
        return PoissonSampling(expected_batch_size=self.bands * self.expected_batch_size, records=self.records)

    def event(self, released: Gaussian) -> CorrelatedSteps:  # type: ignore[override]
        """Return the event of all steps: they have no events of their own."""
        return CorrelatedSteps(
            steps=self.steps,
            bands=self.bands,
            sampling_probability=self.within_group.sampling_probability,
            event=released,
        )

    def groups(self, num_records: int, randomness: StepRandomness) -> Tensor:
        """Return the group of each record, the same at every step of an attempt."""
        uniforms = replace(randomness, step=0).uniforms(GROUPS, num_records)
        return (uniforms * self.bands).long().clamp_max_(self.bands - 1)

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order. Steps after the last one are refused."""
        if not randomness.step < self.steps:
            raise InvalidValue("step", allowed=f"below {self.steps}, where the run ends", given=randomness.step)
        drawn = self.within_group.draw(num_records, randomness, purpose=purpose)
        return drawn[self.groups(num_records, randomness)[drawn] == randomness.step % self.bands]
