"""ε after every step of a run, at a cost that training does not notice.

>>> from lehr.events import Gaussian, PoissonSampled
>>> curve = EpsilonCurve(PoissonSampled(512 / 60_000, Gaussian(1.23)), delta=1e-5, largest_steps=4698)
>>> [f"{curve.at(steps):.2f}" for steps in (0, 1, 1000, 4698)]
['0.00', '0.08', '1.05', '2.37']
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable

from lehr import validate
from lehr.accounting.accountant import bound
from lehr.accounting.pld import PldAccountant
from lehr.accounting.rdp import RDP_BALLE20
from lehr.errors import AccountantFailed, InvalidValue, UnsupportedEvent
from lehr.events import Adjacency, Event, Repeated

GRID_TOLERANCE = 1e-3
LARGEST_RISE = 1.0035  # of ε between a count and the next one that is computed; in between the next one's ε is given
LOOK_AHEAD = 1.006  # from one count to the next that is tried, when steps are asked for in turn
RANGE_RATIO = 2.0  # of step counts that share one transform


class EpsilonCurve:
    """ε of the first so many steps of a plan of equal steps: never below the truth, and within 0.5 % of ``bound``.

    It never falls from one step to the next, and at ``largest_steps`` it is exactly ``bound``. Values are computed when
    they are asked for and kept: asking for every step in turn costs about a second in all for a run of a few thousand
    steps, and a few seconds for a million.
    """

    def __init__(
        self,
        step: Event,
        *,
        delta: float,
        largest_steps: int,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    ) -> None:
        self.step, self.delta, self.adjacency = step, validate.delta(delta=delta), adjacency
        self.largest_steps = validate.count(largest_steps=largest_steps)
        whole = Repeated(step, self.largest_steps)
        self._largest_epsilon = bound(whole, delta=self.delta, adjacency=adjacency).epsilon
        self._known: dict[int, float] = {0: 0.0, self.largest_steps: self._largest_epsilon}
        self._counts = sorted(self._known)
        self._ranges: dict[int, Callable[[int], float]] = {}
        self._renyi = self._countable(lambda: RDP_BALLE20.repeated(step, delta=self.delta, adjacency=adjacency))

    def at(self, steps: int) -> float:
        """An upper bound on ε after so many steps, perhaps that of a few steps more."""
        self._refuse_outside(steps)
        place = bisect_left(self._counts, steps)
        above, below = self._counts[place], self._counts[max(place - 1, 0)]
        if above != steps and not self._known[above] <= LARGEST_RISE * self._known[below]:
            above = max(steps, math.floor(below * LOOK_AHEAD))
            while above > steps and not self._epsilon(above) <= LARGEST_RISE * self._known[below]:
                above = (steps + above) // 2
        return self._epsilon(above)

    def drawn_at(self, steps: int) -> float:
        """The same, but of this very count: a chart of few points then has no flat spots."""
        self._refuse_outside(steps)
        return self._epsilon(steps)

    def _refuse_outside(self, steps: int) -> None:
        if not validate.count(minimum=0, steps=steps) <= self.largest_steps:
            raise InvalidValue("steps", allowed=f"at most {self.largest_steps}", given=steps)

    def _epsilon(self, steps: int) -> float:
        if steps not in self._known:
            range_index = math.floor(math.log(steps) / math.log(RANGE_RATIO))
            if range_index not in self._ranges:
                self._ranges[range_index] = self._range(range_index)
            found = min(self._ranges[range_index](steps), self._renyi(steps))
            insort(self._counts, steps)
            self._known[steps] = self._in_order(steps, found)
        return self._known[steps]

    def _in_order(self, steps: int, found: float) -> float:
        """Two grids may differ by their tolerance; ε never falls, so the larger neighbour's value is a bound too."""
        place = bisect_left(self._counts, steps)
        smaller, larger = self._counts[place - 1], self._counts[place + 1]
        return min(max(found, self._known[smaller]), self._known[larger])

    def _range(self, index: int) -> Callable[[int], float]:
        fewest = max(math.floor(RANGE_RATIO**index), 1)
        most = max(min(math.ceil(RANGE_RATIO ** (index + 1)), self.largest_steps), fewest)
        accountant = PldAccountant(tolerance=GRID_TOLERANCE)
        return self._countable(
            lambda: accountant.repeated(self.step, delta=self.delta, adjacency=self.adjacency, fewest=fewest, most=most)
        )

    @staticmethod
    def _countable(make: Callable[[], Callable[[int], float]]) -> Callable[[int], float]:
        """An accountant that cannot count the step drops out; ``bound`` has made sure that one can."""
        try:
            return make()
        except (UnsupportedEvent, AccountantFailed):
            return lambda steps: math.inf
