"""A privacy filter: composition for runs whose plans are chosen after seeing what earlier runs released.

Tight accountants and sums of ε's hold for events that were fixed beforehand. When the next event may depend on earlier
outcomes, or a run may stop early because of them, what holds is a limit on accumulated Rényi divergence that is checked
before each event (Feldman & Zrnic 2021; Whitehouse, Ramdas, Rogers & Wu 2023). The orders are part of the filter: they
are fixed before a record is touched, from public numbers only.

>>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
>>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
>>> filter_ = RenyiFilter.choose(epsilon=3.0, delta=1e-5)
>>> filter_.admits(Repeated(step, 5000)), filter_.admits(Repeated(step, 7000))
(True, False)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from lehr import validate
from lehr.accounting.events import Adjacency, Atom, Event, RenyiLimit, check_adjacency, counted
from lehr.accounting.rdp import FRACTIONAL_ORDERS, Floats, balle20, renyi_divergences
from lehr.errors import InvalidValue

_SMALLEST_ORDER = 1.1
_MOST_ORDERS = 20  # each more leaves less of δ to the others
_BELOW = 1 - 1e-9  # so that rounding on the way back does not pass ε
_LARGEST_ORDER = 10_000  # ε below about 0.003 needs more; dp-accounting's work grows with the order


@dataclass(frozen=True, kw_only=True, slots=True)
class RenyiFilter:
    """Admits a composition while, at one order at least, its Rényi divergence is within the limit of that order.

    (ε, δ) holds for everything admitted, however it was chosen. Each order has an equal share of δ.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE

    proof: ClassVar[str] = "accounting/filter.proof.md"
    theorem: ClassVar[str] = "Rényi privacy filter (Feldman & Zrnic 2021, Theorem 4.3), one per order, δ shared equally"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.positive(epsilon=self.epsilon))
        object.__setattr__(self, "delta", validate.delta(delta=self.delta))
        object.__setattr__(self, "orders", tuple(validate.positive(orders=order) for order in self.orders))
        check_adjacency(adjacency=self.adjacency)
        if not 1 <= len(self.orders) <= _MOST_ORDERS or not all(1 < order <= _LARGEST_ORDER for order in self.orders):
            allowed = f"1 to {_MOST_ORDERS} numbers above 1 and at most {_LARGEST_ORDER}"
            raise InvalidValue("orders", allowed=allowed, given=self.orders)
        if not np.any(self.limits > 0):
            allowed = f"large enough for the orders {self.orders} to admit"
            raise InvalidValue("epsilon", allowed=allowed, given=self.epsilon)

    @classmethod
    def choose(
        cls,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
        expecting: Event | None = None,
    ) -> Self:
        """Orders from public numbers: the best one for ``expecting``, the event that will fill most of the budget, or
        two that suit Gaussian steps in general."""
        epsilon, delta = validate.positive(epsilon=epsilon), validate.delta(delta=delta)
        orders = _orders_for_gaussian(epsilon, delta)
        if expecting is not None:
            candidates = tuple(sorted({*FRACTIONAL_ORDERS, *orders}))
            orders = (_best_of(candidates, epsilon, delta, adjacency, expecting)[0],)
        return cls(epsilon=epsilon, delta=delta, adjacency=adjacency, orders=orders)

    @property
    def limits(self) -> Floats:
        """The divergence at each order that converts to exactly (ε, δ / number of orders)."""
        orders = np.asarray(self.orders)
        return self.epsilon - balle20(orders, np.zeros(len(orders)), self.delta / len(orders))

    def admits(self, event: Event) -> bool:
        """Whether the whole of ``event``, everything charged so far included, is within the limit of some order."""
        return bool(np.any(self._divergences(event) <= self.limits))

    def epsilon_spent(self, event: Event) -> float:
        """The smallest ε with which this filter, at the same orders and δ, would still admit ``event``."""
        divergences = self._divergences(event)
        if not divergences.any():
            return 0.0
        return max(0.0, float(np.min(balle20(np.asarray(self.orders), divergences, self.delta / len(self.orders)))))

    def _divergences(self, event: Event) -> Floats:
        return renyi_divergences(event, self.orders, self.adjacency, accountant="filter")


def _orders_for_gaussian(epsilon: float, delta: float) -> tuple[float, ...]:
    """The order that is best for pure Gaussian noise, and about half of it: subsampling moves the best order down."""
    root = math.sqrt(-math.log(delta))
    above_one = root * (math.sqrt(root**2 + epsilon) + root) / epsilon
    wanted = (min(max(1 + scale * above_one, _SMALLEST_ORDER), _LARGEST_ORDER) for scale in (0.55, 1.0))
    return tuple(sorted({float(round(order, 1 if order < 10 else None)) for order in wanted}))


def _best_of(
    orders: tuple[float, ...], epsilon: float, delta: float, adjacency: Adjacency, event: Event
) -> tuple[float, float]:
    """The order that admits most of such events, and its limit."""
    limits = epsilon - balle20(np.asarray(orders), np.zeros(len(orders)), delta)
    best = int(np.argmax(limits / renyi_divergences(event, orders, adjacency, accountant="filter")))
    return orders[best], float(limits[best])


def limit_for(epsilon: float, delta: float, adjacency: Adjacency, *, expecting: Event) -> RenyiLimit:
    """A limit at the one order that suits the expected events best; within it (ε, δ) holds, whatever is chosen.

    >>> from lehr.accounting.events import Gaussian, PoissonSampled, Repeated
    >>> step = PoissonSampled(512 / 60_000, Gaussian(1.23))
    >>> limit = limit_for(3.0, 1e-5, Adjacency.ADD_OR_REMOVE_ONE, expecting=Repeated(step, 5000))
    >>> is_within(Repeated(step, 5000), limit, Adjacency.ADD_OR_REMOVE_ONE)
    True
    """
    order, limit = _best_of(FRACTIONAL_ORDERS, epsilon, delta, adjacency, expecting)
    if not limit > 0:
        raise InvalidValue("epsilon", allowed="large enough for a privacy filter to admit anything", given=epsilon)
    return RenyiLimit(order=order, divergence=limit * _BELOW)


def is_within(events: Event, limit: RenyiLimit, adjacency: Adjacency) -> bool:
    """Whether the divergences of these events add up to no more than the limit."""
    return divergence_at(events, limit.order, adjacency) <= limit.divergence


def divergence_at(events: Event, order: float, adjacency: Adjacency) -> float:
    """The Rényi divergence of these events at one order. Each distinct event is computed once and remembered."""
    return math.fsum(count * _divergence_of(atom, order, adjacency) for atom, count in counted(events).items())


def epsilon_at(events: Event, limit: RenyiLimit, *, delta: float, adjacency: Adjacency) -> float:
    """ε of these events by the order of the limit alone."""
    divergence = divergence_at(events, limit.order, adjacency)
    return max(0.0, float(balle20(np.asarray(limit.order), np.asarray(divergence), delta))) if divergence else 0.0


@lru_cache(maxsize=100_000)
def _divergence_of(atom: Atom, order: float, adjacency: Adjacency) -> float:
    """At the order or the next whole one, where a divergence is no smaller: some series end at whole orders only."""
    orders = tuple(sorted({order, float(math.ceil(order))}))
    return float(renyi_divergences(atom, orders, adjacency, accountant="filter", only_these=True).min())
