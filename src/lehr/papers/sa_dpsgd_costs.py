"""What so many steps of a setting cost: by the rule of SA-DPSGD's paper, and proven.

Accountants are loaded when they are first asked: what tables there are is to be listed at once.

>>> from lehr.papers.sa_dpsgd_runs import MNIST
>>> f"{published_epsilon(MNIST, 4698):.4f}", f"{proven_epsilon(MNIST, 4698):.4f}"
('2.9998', '2.3663')
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from lehr.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated
from lehr.papers.sa_dpsgd_runs import DELTA, Setting

if TYPE_CHECKING:
    from lehr.accounting.running import EpsilonCurve

_ADJACENCY = Adjacency.ADD_OR_REMOVE_ONE


def published_epsilon(setting: Setting, accepted: int) -> float:
    """What the paper says of so many accepted steps."""
    return _published(_step(setting))(accepted)


def proven_epsilon(setting: Setting, candidates: int) -> float:
    """What a plan of so many candidates is proven to cost."""
    return _proven(_step(setting), candidates)


def proven_on_the_way(setting: Setting, candidates: int) -> float:
    """The same for many counts up to all that a run may draw: never less, and within half a percent."""
    return _curve(_step(setting), most_candidates(setting)).drawn_at(candidates)


def most_candidates(setting: Setting) -> int:
    """All that may be drawn by a run that ends at the paper's number of accepted ones: the largest plan there is."""
    return setting.steps * (setting.rejection_threshold + 1)


def _step(setting: Setting) -> Event:
    return PoissonSampled(setting.batch / setting.records, Gaussian(setting.noise_multiplier))


@lru_cache
def _published(step: Event) -> Callable[[int], float]:
    from lehr.accounting.rdp import RDP_MIRONOV17

    return RDP_MIRONOV17.repeated(step, delta=DELTA, adjacency=_ADJACENCY)


@lru_cache
def _proven(step: Event, candidates: int) -> float:
    from lehr.accounting.accountant import bound

    return bound(Repeated(step, candidates), delta=DELTA, adjacency=_ADJACENCY).epsilon


@lru_cache
def _curve(step: Event, largest_steps: int) -> EpsilonCurve:
    from lehr.accounting.running import EpsilonCurve

    return EpsilonCurve(step, delta=DELTA, adjacency=_ADJACENCY, largest_steps=largest_steps)
