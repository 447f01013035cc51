"""Where the losses that decide ε lie, for a range of step counts: a tilt, and a window around the tilted losses.

Under the law tilted by e^(tilt·loss) the sum of many losses gathers around its mean with a spread of a few deviations.
The tilt is chosen so that this mean is where ε lies: it minimises the Chernoff bound on ε, so that tilt + 1 is the
order of the best Rényi bound. All numbers here only steer the precision of a composition; none of them decides its
validity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lehr.accounting.privacy_loss import Loss

Parts = Sequence[tuple[Loss, int]]

LOG_TILTED_TAIL = math.log(1e-10)  # probability, under the tilted law, of falling outside of the window on one side
_TILT_RATIO = 1.1  # tilts are looked up on a geometric grid, so that neighbouring queries share their moments


class Window:
    """The tilt for the largest number of repeats, and losses that frame every number of them."""

    def __init__(self, parts: Parts, *, delta: float, fewest: int, most: int, gentler: int = 0) -> None:
        """A tilt ``gentler`` times halved suits losses of which a single large one, not their sum, decides."""
        self.parts, self.delta, self.fewest, self.most = parts, delta, fewest, most
        self.tilt = self._best_tilt() / 2**gentler
        self.low = max(self._lows(fewest))
        self.high, self.further_tilt = min(self._highs(most))

    def spacing_for(self, tolerance: float) -> float:
        """A grid adds spacing²/6 of variance a step; this much of it changes ε by about ``tolerance``·ε."""
        steps = self.most * sum(count for _, count in self.parts)
        return math.sqrt(12 * tolerance * self._chernoff(self.tilt) / (steps * (self.tilt + 1)))

    def _lows(self, repeats: int) -> list[float]:
        here = self._log_moment(self.tilt)
        shifts = [*self._shifts(repeats), 0.5 * self.tilt, self.tilt]  # for losses that are bounded above, not below
        rises = [repeats * (here - self._log_moment(self.tilt - shift)) for shift in shifts]
        return [(rise + LOG_TILTED_TAIL) / shift for rise, shift in zip(rises, shifts, strict=True)]

    def _highs(self, repeats: int) -> list[tuple[float, float]]:
        here = self._log_moment(self.tilt)
        shifts = [*self._shifts(repeats), 0.1 * self.tilt, 0.3 * self.tilt, self.tilt]
        rises = [repeats * (self._log_moment(self.tilt + shift) - here) for shift in shifts]
        pairs = zip(rises, shifts, strict=True)
        return [((rise - LOG_TILTED_TAIL) / shift, self.tilt + shift) for rise, shift in pairs]

    def _shifts(self, repeats: int) -> list[float]:
        """Further tilts for Chernoff bounds: the best one for a normal law, and gentler ones for heavier tails."""
        deviation = math.sqrt(repeats * self._variance(self.tilt))
        return [scale * math.sqrt(-2 * LOG_TILTED_TAIL) / deviation for scale in (0.03, 0.1, 0.3, 1.0)]

    def _best_tilt(self) -> float:
        guess = 0.5 * math.log(-2 * math.log(self.delta) / (self.most * self._variance(0.0)))
        index = round(guess / math.log(_TILT_RATIO))
        return float(_TILT_RATIO ** _lowest(lambda i: self._chernoff(_TILT_RATIO**i), index - 240, index + 40))

    def _chernoff(self, tilt: float) -> float:
        return (self.most * self._log_moment(tilt) - math.log(self.delta)) / tilt

    def _log_moment(self, tilt: float) -> float:
        return sum(count * part.log_moment(tilt) for part, count in self.parts)

    def _variance(self, tilt: float) -> float:
        return sum(count * part.variance(tilt) for part, count in self.parts)


def _lowest(value: Callable[[int], float], first: int, last: int) -> int:
    """The index of the minimum: the best of every sixteenth, then by strides that halve."""
    index, stride = min(range(first, last + 1, 16), key=value), 8
    while stride:
        index = min((max(index - stride, first), index, min(index + stride, last)), key=value)
        stride //= 2
    return index
