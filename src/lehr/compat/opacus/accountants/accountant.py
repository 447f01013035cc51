"""The history of a run in Opacus's shape, counted by ``lehr.accounting``.

>>> accountant = PRVAccountant()
>>> for _ in range(100):
...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
>>> accountant.history, round(accountant.get_epsilon(delta=1e-5), 2)
([(1.0, 0.01, 100)], 0.72)
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from lehr import validate
from lehr.accounting import ACCOUNTANTS, bound
from lehr.compat.opacus.notes import warn_unproven
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated, together

History = list[tuple[float, float, int]]


class IAccountant(abc.ABC):
    """Steps as ``(noise_multiplier, sample_rate, number of steps)``; subclasses say what they cost."""

    def __init__(self) -> None:
        self.history: History = []

    @classmethod
    @abc.abstractmethod
    def mechanism(cls) -> str:
        """The name that picks this accountant."""

    @abc.abstractmethod
    def get_epsilon(self, delta: float) -> float:
        """ε of everything so far."""

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step more."""
        _step_event(noise_multiplier, sample_rate)
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def event(self) -> Event:
        """The history as an event of ``lehr.events``."""
        return together(*(Repeated(_step_event(noise, rate), steps) for noise, rate, steps in self.history))

    def __len__(self) -> int:
        """The number of steps. Opacus's own returns the number of entries of its history."""
        return sum(steps for _, _, steps in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A hook for ``attach_step_hook`` of an optimizer that does not count its own steps."""

        def count(optimizer: Any) -> None:
            self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return count

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """The history and the name of the accountant."""
        state = {} if destination is None else destination
        state["history"] = list(self.history)
        state["mechanism"] = self.mechanism()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over a history that an accountant of the same name has saved."""
        missing = {"history", "mechanism"} - set(state_dict or {})
        if missing:
            allowed = f"one with {sorted(missing)}"
            raise InvalidValue("state_dict", allowed=allowed, given=sorted(state_dict or {}))
        if state_dict["mechanism"] != self.mechanism():
            allowed = f"that of the accountant {self.mechanism()!r}"
            raise InvalidValue("state_dict", allowed=allowed, given=state_dict["mechanism"])
        self.history = [_entry(*entry) for entry in state_dict["history"]]


class PRVAccountant(IAccountant):
    """The smallest proven bound of ``lehr.accounting``, which is nearly always that of privacy loss distributions.

    It is at least as tight as Opacus's own and does not fail where that does. ``eps_error`` and ``delta_error`` are
    accepted and not needed.
    """

    @classmethod
    def mechanism(cls) -> str:
        return "prv"

    def get_epsilon(self, delta: float, *, eps_error: float = 0.01, delta_error: float | None = None) -> float:
        return bound(self.event(), delta=delta).epsilon


class RDPAccountant(IAccountant):
    """Rényi divergences, with the conversion of Balle et al. (2020), as in Opacus, over more orders."""

    accountant: ClassVar[str] = "rdp-balle20"

    @classmethod
    def mechanism(cls) -> str:
        return "rdp"

    def get_epsilon(self, delta: float, alphas: None = None) -> float:
        if alphas is not None:
            raise InvalidValue("alphas", allowed="none: the orders are chosen so that ε is least", given=alphas)
        return _counted(self.accountant, self.event(), delta)


class GaussianAccountant(IAccountant):
    """The central limit of Dong et al. (2022): an estimate that may lie below the truth, and never a guarantee."""

    @classmethod
    def mechanism(cls) -> str:
        return "gdp"

    def get_epsilon(self, delta: float, poisson: bool = True) -> float:
        if not poisson:
            raise InvalidValue("poisson", allowed="True: shuffled batches have no accountant here", given=poisson)
        warn_unproven('"gdp" estimates ε by a central limit, which may lie below the truth; "prv" is a bound')
        return _counted("gdp", self.event(), delta)


def _counted(accountant: str, event: Event, delta: float) -> float:
    counting = ACCOUNTANTS[accountant]
    return counting.epsilon(event, delta=validate.delta(delta=delta), adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def _step_event(noise_multiplier: float, sample_rate: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability=sample_rate, event=Gaussian(noise_multiplier=noise_multiplier))


def _entry(noise_multiplier: object, sample_rate: object, steps: object) -> tuple[float, float, int]:
    return (
        validate.non_negative(noise_multiplier=noise_multiplier),
        validate.probability(sample_rate=sample_rate),
        validate.count(steps=steps),
    )
