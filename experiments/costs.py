"""What plans of the papers' tables cost, at add-or-remove-one adjacency: by the papers' rule, and proven."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # half a second to import, and nobody who lists the tables needs it
    from lehr.accounting.accountant import EpsilonCurve
    from lehr.accounting.events import Event

DELTA = 1e-5


@lru_cache
def published(sampling_probability: float, noise_multiplier: float) -> Callable[[int], float]:
    """The ε of so many steps by the moments that papers count with (``rdp-mironov17``)."""
    from lehr.accounting.events import Adjacency
    from lehr.accounting.rdp import RDP_MIRONOV17

    step = _step(sampling_probability, noise_multiplier)
    return RDP_MIRONOV17.repeated(step, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@lru_cache
def proven(sampling_probability: float, noise_multiplier: float, steps: int) -> float:
    """The ε of a plan of so many steps, by the smallest bound."""
    from lehr.accounting.accountant import bound
    from lehr.accounting.events import Adjacency, Repeated

    event = Repeated(_step(sampling_probability, noise_multiplier), steps)
    return bound(event, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE).epsilon


@lru_cache
def curve(sampling_probability: float, noise_multiplier: float, largest_steps: int) -> EpsilonCurve:
    """The proven ε of many numbers of steps: never less than the smallest bound, and within half a percent of it."""
    from lehr.accounting.accountant import EpsilonCurve

    return EpsilonCurve(_step(sampling_probability, noise_multiplier), delta=DELTA, largest_steps=largest_steps)


def _step(sampling_probability: float, noise_multiplier: float) -> Event:
    from lehr.accounting.events import Gaussian, PoissonSampled

    return PoissonSampled(sampling_probability, Gaussian(noise_multiplier))
