"""A straight line of accuracy against the logarithm of the batch, by least squares, and how sure it is.

At a constant ratio of noise to batch and a constant number of steps, accuracies lie near such a line (Sander et al.
2023, Figure 4). Twice the batch is one step to the right, so that the slope is what a doubling gains or costs.

>>> law = fit_law([(64, 0.70), (128, 0.69), (256, 0.67), (512, 0.66)])
>>> round(law.slope, 4), round(law.at(4096), 3)
(-0.014, 0.617)
>>> lowest, highest = law.interval(4096, confidence=0.95)
>>> round(lowest, 3), round(highest, 3)
(0.586, 0.648)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lehr import validate
from lehr.errors import InvalidValue

FEWEST_RUNS, FEWEST_BATCHES = 3, 2
LARGEST_CONFIDENCE = 0.999_999  # beyond it, quantiles are far out in tails that no handful of runs knows


class Interval(NamedTuple):
    """Everything between two numbers, both included."""

    lowest: float
    highest: float

    def has(self, value: float) -> bool:
        """Whether the value is between them."""
        return self.lowest <= value <= self.highest


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """accuracy = level + slope · (log2 of the batch − center).

    ``residual_std`` is how far single runs lie from it. ``bend_p_value`` is the chance that runs around a straight line
    bend away from it as these do, judged by how much runs of one batch differ; None where that cannot be told.
    """

    center: float
    level: float
    slope: float
    residual_std: float
    spread: float  # of log2 of the batches around the center, as a sum of squares
    num_runs: int
    largest_batch: float
    bend_p_value: float | None

    def at(self, batch: float) -> float:
        """What the line says."""
        return self.level + self.slope * self._from_center(batch)

    def interval(self, batch: float, *, confidence: float, num_runs: int = 1) -> Interval:
        """Where the mean of so many further runs of that batch falls with that confidence.

        Both are in it: that the line itself is known from a few runs only, and that a further run strays from it.
        """
        share = 1 / validate.count(num_runs=num_runs) + 1 / self.num_runs + self._from_center(batch) ** 2 / self.spread
        reach = self._quantile(confidence) * self.residual_std * math.sqrt(share)
        return Interval(self.at(batch) - reach, self.at(batch) + reach)

    def slope_interval(self, *, confidence: float) -> Interval:
        """Where the true slope lies with that confidence."""
        reach = self._quantile(confidence) * self.residual_std / math.sqrt(self.spread)
        return Interval(self.slope - reach, self.slope + reach)

    def doublings_beyond(self, batch: float) -> float:
        """How many times the largest batch that was seen must be doubled to get there; 0 where it need not."""
        return max(0.0, _log2(batch) - math.log2(self.largest_batch))

    def _from_center(self, batch: float) -> float:
        return _log2(batch) - self.center

    def _quantile(self, confidence: float) -> float:
        """Of Student's distribution: the spread of the residuals is itself known from a few runs only."""
        return float(special.stdtrit(self.num_runs - 2, (1 + a_confidence(confidence=confidence)) / 2))


def fit_law(runs: Sequence[tuple[float, float]]) -> Law:
    """The line through runs, each a batch and an accuracy."""
    batches = np.array([_log2(batch) for batch, _ in runs])
    accuracies = np.array([an_accuracy(accuracy=accuracy) for _, accuracy in runs])
    if len(batches) < FEWEST_RUNS or len(np.unique(batches)) < FEWEST_BATCHES:
        allowed = f"{FEWEST_RUNS} or more, of {FEWEST_BATCHES} or more batches: through fewer, any line goes"
        raise InvalidValue("runs", allowed=allowed, given=f"{len(batches)} of {len(np.unique(batches))}")
    center, level = float(batches.mean()), float(accuracies.mean())
    spread = float(np.square(batches - center).sum())
    slope = float((batches - center) @ (accuracies - level)) / spread
    residuals = accuracies - level - slope * (batches - center)
    return Law(
        center=center,
        level=level,
        slope=slope,
        residual_std=math.sqrt(float(residuals @ residuals) / (len(batches) - 2)),
        spread=spread,
        num_runs=len(batches),
        largest_batch=max(batch for batch, _ in runs),
        bend_p_value=_bend_p_value(batches, accuracies, residuals),
    )


def a_confidence(**named: object) -> float:
    """The confidence of an interval: a number above zero, and not so near to one that no interval is meant."""
    [(name, value)] = named.items()
    if not (confidence := validate.delta(**named)) <= LARGEST_CONFIDENCE:
        raise InvalidValue(name, allowed=f"at most {LARGEST_CONFIDENCE}", given=value)
    return confidence


def an_accuracy(**named: object) -> float:
    """A share of records: a number in [0, 1]."""
    [(name, value)] = named.items()
    if not (accuracy := validate.non_negative(**named)) <= 1:
        raise InvalidValue(name, allowed="a number in [0, 1]", given=value)
    return accuracy


def _log2(batch: float) -> float:
    return math.log2(validate.positive(batch=batch))


def _bend_p_value(
    batches: NDArray[np.float64], accuracies: NDArray[np.float64], residuals: NDArray[np.float64]
) -> float | None:
    """The test of a parabola against the line, judged by how much runs of one batch differ among themselves.

    What extrapolation suffers from is a steady bend, since accuracies cannot rise for ever: one number, and not every
    way in which the means of the batches may miss a line, which few runs could tell from chance.
    """
    groups = [accuracies[batches == batch] for batch in np.unique(batches)]
    within = len(batches) - len(groups)
    inside = sum(float(np.square(group - group.mean()).sum()) for group in groups)
    if len(groups) < 3 or within < 1 or not inside > 0:
        return None
    straight = np.vander(batches - batches.mean(), 2)
    square = np.square(straight[:, 0])
    bend = square - straight @ np.linalg.lstsq(straight, square, rcond=None)[0]
    explained = float(bend @ residuals) ** 2 / float(bend @ bend)
    return float(special.fdtrc(1, within, explained / (inside / within)))
