"""Matrices of correlated noise, without torch: their coefficients, what a record moves, and the error of the weights.

C is a lower triangular Toeplitz matrix, and a run releases sums with the noise C⁻¹·z (``privacy.correlated``). Either C
has a few bands, or its inverse.

- ``band_coefficients``, ``inverse_band_coefficients``: those of C, or of C⁻¹, with the least error of the weights
- ``moved_by_record``: the sensitivity of C, from the coefficients of C⁻¹
- ``relative_error``: the error of the weights, relative to independent noise
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal

from lehr import validate
from lehr.errors import InvalidValue

Floats = NDArray[np.float64]

_MOST_STEPS = 4096  # of the run that coefficients are optimised for; beyond it they hardly change
_MOST_STEPS_OF_INVERSE = 16_384
_SCALE = 1000.0  # of the variables of the search, so that its first step is short
_DIGITS = 6  # of optimised coefficients, so that rounding elsewhere does not change them
_BELOW_ONE = 1 - 2**-40  # the norm of the coefficients, so that rounding does not put it above one


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
