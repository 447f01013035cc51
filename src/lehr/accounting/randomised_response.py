"""The worst ε-differentially private mechanism: one bit that is told truly with probability e^ε / (1 + e^ε).

Every ε-differentially private mechanism is a post-processing of it (Kairouz, Oh & Viswanath 2015), so that whatever
holds for this pair of distributions, its Rényi divergences and its privacy loss, is a bound for all of them. The loss
is ε for the true bit and −ε for the other, in both directions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lehr.accounting.privacy_loss import GridLoss

Floats = NDArray[np.float64]

_SMALLEST_EPSILON = 1e-140  # a smaller one, but for zero, counts as this: its square is still a double
_LARGEST_EPSILON = 1e200  # a larger one counts as infinite
_FLAT_EXPONENT = 1e3  # beyond it e^(−exponent) is no double
_ROUNDING = 1e-14  # relative, of a divergence: some fifty units in the last place
_SMALL_EXPONENT = 100.0  # its hyperbolic sine, squared, is still a double
_SMALLEST_VARIANCE = 1e-200  # it only steers; zero could not be divided by


def randomised_response_divergences(epsilon: float, orders: Floats) -> Floats:
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
    found = np.where(more < _SMALL_EXPONENT, near_one / (orders - 1), epsilon + rest / (orders - 1))
    return np.asarray(np.minimum(found * (1 + _ROUNDING), epsilon))


class RandomisedResponseLoss:
    """The privacy loss of randomised response, exactly and on a grid."""

    def __init__(self, epsilon: float) -> None:
        epsilon = max(epsilon, _SMALLEST_EPSILON)
        self.largest, self.smallest = epsilon, -epsilon
        self._log_true = -math.log1p(math.exp(-epsilon))

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt·loss)]."""
        epsilon = self.largest
        return float(np.logaddexp(self._log_true + tilt * epsilon, self._log_true - (1 + tilt) * epsilon))

    def variance(self, tilt: float) -> float:
        """The variance of the loss under the law tilted by e^(tilt·loss)."""
        odds = math.exp(-abs(1 + 2 * tilt) * self.largest)
        return max(4 * self.largest**2 * odds / (1 + odds) ** 2, _SMALLEST_VARIANCE)

    def on_grid(self, spacing: float) -> GridLoss:
        """Each of the two masses split between its neighbours on the grid, so that every ε from it is a bound."""
        last = math.ceil(self.largest / spacing) + 1
        masses = np.zeros(2 * last + 1)
        for loss, log_mass in ((self.largest, self._log_true), (self.smallest, self._log_true - self.largest)):
            left = math.floor(loss / spacing)
            share = min(max(math.expm1(left * spacing - loss) / math.expm1(-spacing), 0.0), 1.0)
            masses[left + last + 1] += share * math.exp(log_mass)
            masses[left + last] += (1 - share) * math.exp(log_mass)
        return GridLoss(spacing, -last, masses, 0.0)
