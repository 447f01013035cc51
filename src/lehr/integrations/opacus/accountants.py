"""Opacus's accountants over ``lehr.accounting``: a history of steps, accountants by name, and calibration of noise.

>>> accountant = create_accountant("prv")
>>> for _ in range(100):
...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
>>> accountant.history, round(accountant.get_epsilon(delta=1e-5), 2)
([(1.0, 0.01, 100)], 0.72)
>>> sigma = get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.01, epochs=10, accountant="prv")
>>> round(sigma, 2)
0.81
"""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from lehr import validate
from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.calibration import Target, smallest_noise_multiplier
from lehr.accounting.events import NOTHING, Adjacency, Event, Gaussian, PoissonSampled, Repeated, together
from lehr.errors import InvalidValue

History = list[tuple[float, float, int]]


class UnprovenWarning(UserWarning):
    """The ε that is shown is not a guarantee."""


def warn(text: str, kind: type[Warning] = UserWarning) -> None:
    """Warn at the user's line: the first one outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lehr.integrations.opacus"):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, kind, stacklevel=level)


def warn_unproven(reason: str) -> None:
    """Warn that an ε is not a guarantee."""
    warn(f"this is not a guarantee: {reason}", UnprovenWarning)


class IAccountant(abc.ABC):
    """A history of ``(noise_multiplier, sample_rate, number of steps)``; subclasses compute ε from it."""

    name: ClassVar[str]

    def __init__(self) -> None:
        self.history: History = []

    @classmethod
    def mechanism(cls) -> str:
        """The name of this accountant."""
        return cls.name

    @abc.abstractmethod
    def get_epsilon(self, delta: float) -> float:
        """ε of all steps so far."""

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one more step."""
        _step_event(noise_multiplier, sample_rate)
        steps = 1
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps += self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps))

    def event(self) -> Event:
        """The history as an event of ``lehr.accounting.events``."""
        return together(*(Repeated(_step_event(noise, rate), steps) for noise, rate, steps in self.history))

    def __len__(self) -> int:
        """The number of steps. Opacus's own returns the number of entries of its history."""
        return sum(steps for _, _, steps in self.history)

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A hook for ``attach_step_hook`` of an optimizer that does not count its own steps."""
        return lambda optimizer: self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """The history and the name of the accountant."""
        state = {} if destination is None else destination
        state.update(history=list(self.history), mechanism=self.mechanism())
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the history of an accountant of the same name."""
        if not state_dict or "history" not in state_dict or state_dict.get("mechanism") != self.mechanism():
            allowed = f"one with the history of the accountant {self.mechanism()!r}"
            raise InvalidValue("state_dict", allowed=allowed, given=sorted(state_dict or {}))
        for noise_multiplier, sample_rate, steps in state_dict["history"]:
            _step_event(noise_multiplier, sample_rate)
            validate.count(steps=steps)
        self.history = [(noise, rate, steps) for noise, rate, steps in state_dict["history"]]


class PRVAccountant(IAccountant):
    """The smallest proven bound of ``lehr.accounting``, nearly always that of privacy loss distributions.

    It is at least as tight as Opacus's own. ``eps_error`` and ``delta_error`` are accepted and not used.
    """

    name = "prv"

    def get_epsilon(self, delta: float, *, eps_error: float = 0.01, delta_error: float | None = None) -> float:
        return bound(self.event(), delta=delta).epsilon


class RDPAccountant(IAccountant):
    """Rényi DP with the conversion of Balle et al. (2020), as in Opacus, over more orders."""

    name = "rdp"

    def get_epsilon(self, delta: float, alphas: None = None) -> float:
        if alphas is not None:
            raise InvalidValue("alphas", allowed="None: the orders are chosen so that ε is smallest", given=alphas)
        return _epsilon("rdp-balle20", self.event(), delta)


class GaussianAccountant(IAccountant):
    """The central limit of Dong et al. (2022): an estimate that may be below the true ε, never a guarantee."""

    name = "gdp"

    def get_epsilon(self, delta: float, poisson: bool = True) -> float:
        if not poisson:
            raise InvalidValue("poisson", allowed="True: shuffled batches have no accountant here", given=poisson)
        warn_unproven('"gdp" estimates ε by a central limit, which may lie below the true ε; "prv" is a bound')
        return _epsilon("gdp", self.event(), delta)


BUILT_IN: dict[str, type[IAccountant]] = {"rdp": RDPAccountant, "gdp": GaussianAccountant, "prv": PRVAccountant}
_ACCOUNTANTS = dict(BUILT_IN)
# The accountant of lehr.accounting that calibrates noise; None is the smallest bound of all.
_CALIBRATES = {"prv": None, "rdp": "rdp-balle20"}


def register_accountant(mechanism: str, accountant: type[IAccountant], force: bool = False) -> None:
    """Register an accountant of your own, whose ε counts as unproven. Built-in names cannot be replaced."""
    validate.text(mechanism=mechanism)
    if mechanism in BUILT_IN or (mechanism in _ACCOUNTANTS and not force):
        raise InvalidValue("mechanism", allowed=f"none of {sorted(_ACCOUNTANTS)}", given=mechanism)
    _ACCOUNTANTS[mechanism] = accountant


def create_accountant(mechanism: str) -> IAccountant:
    """A new accountant of this name."""
    return _ACCOUNTANTS[validate.one_of(_ACCOUNTANTS, accountant=mechanism)]()


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = "rdp",
    epsilon_tolerance: float = 0.01,
) -> float:
    """The smallest noise multiplier with which so many steps, or epochs, stay within the target.

    The target is never exceeded, and met within 0.1 %; ``epsilon_tolerance`` is accepted and not used.
    """
    validate.positive(epsilon_tolerance=epsilon_tolerance)
    rate = validate.probability(sample_rate=sample_rate)
    if (steps is None) == (epochs is None):
        raise InvalidValue("steps", allowed="given, or else epochs, and not both", given=(steps, epochs))
    if steps is None:
        steps = int(validate.positive(epochs=epochs) / rate)
    return calibrate(target_epsilon, target_delta, accountant=accountant, sample_rate=rate, steps=steps)


def calibrate(
    epsilon: float, delta: float, *, accountant: str, sample_rate: float, steps: int, before: Event = NOTHING
) -> float:
    """The smallest noise multiplier within the target, counting what was done to the records before."""
    if accountant not in _CALIBRATES:
        allowed = "prv or rdp: noise is calibrated by a bound, never by an estimate"
        raise InvalidValue("accountant", allowed=allowed, given=accountant)
    validate.count(steps=steps)

    def run_event(noise_multiplier: float) -> Event:
        return together(before, Repeated(_step_event(noise_multiplier, sample_rate), steps))

    return smallest_noise_multiplier(run_event, Target(epsilon, delta, accountant=_CALIBRATES[accountant]))


def _epsilon(accountant: str, event: Event, delta: float) -> float:
    validate.delta(delta=delta)
    return ACCOUNTANTS[accountant].epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def _step_event(noise_multiplier: float, sample_rate: float) -> PoissonSampled:
    return PoissonSampled(sampling_probability=sample_rate, event=Gaussian(noise_multiplier=noise_multiplier))
