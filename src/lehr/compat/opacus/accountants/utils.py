"""The noise that a target (ε, δ) needs.

>>> sigma = get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=0.01, epochs=10, accountant="prv")
>>> round(sigma, 2)
0.81
"""

from __future__ import annotations

from lehr import validate
from lehr.accounting.calibration import Target, smallest_noise_multiplier
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Event, Gaussian, PoissonSampled, Repeated, together

# Which of Lehr's accountants decides; for "prv" the smallest bound of all.
_DECIDES = {"prv": None, "pld": None, "rdp": "rdp-balle20"}


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
    """The least noise multiplier with which so many steps, or epochs, stay within the target.

    The target is never passed, and is met within 0.1 %; ``epsilon_tolerance`` is accepted and not needed.
    """
    validate.positive(epsilon_tolerance=epsilon_tolerance)
    rate = validate.probability(sample_rate=sample_rate)
    if (steps is None) == (epochs is None):
        raise InvalidValue("steps", allowed="given, or else epochs, and not both", given=(steps, epochs))
    if steps is None:
        steps = int(validate.positive(epochs=epochs) / rate)
    return noise_multiplier_within(
        Target(target_epsilon, target_delta, accountant=deciding(accountant)), sampling_probability=rate, steps=steps
    )


def noise_multiplier_within(
    target: Target, *, sampling_probability: float, steps: int, before: Event = NOTHING
) -> float:
    """The same, with what was done to the records before counted in."""
    validate.count(steps=steps)

    def run_at(noise_multiplier: float) -> Event:
        step = PoissonSampled(sampling_probability, Gaussian(noise_multiplier))
        return together(before, Repeated(step, steps))

    return smallest_noise_multiplier(run_at, target)


def deciding(accountant: str) -> str | None:
    """Which accountant noise may be chosen by. An estimate must not decide how much noise there is."""
    if accountant not in _DECIDES:
        allowed = "one of prv, pld, rdp: noise is chosen by a bound, never by an estimate"
        raise InvalidValue("accountant", allowed=allowed, given=accountant)
    return _DECIDES[accountant]
