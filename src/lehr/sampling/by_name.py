"""The samplers by the names they have in a configuration."""

from __future__ import annotations

from lehr.errors import InvalidValue
from lehr.sampling.poisson import PoissonSampling
from lehr.sampling.without_replacement import WithoutReplacement

Sampling = PoissonSampling | WithoutReplacement

NAMES = ("poisson", "without-replacement")
_SHUFFLED = ("shuffled", "shuffle", "epochs", "shuffled-epochs")


def named(name: str, *, expected_batch_size: float, records: int) -> Sampling:
    """The sampler of this name.

    >>> named("shuffled", expected_batch_size=2, records=10)
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: sampling must be one of poisson, without-replacement: shuffled epochs have no accountant \
here, and counting them as Poisson sampling understates ε, by up to four times in published runs; given: 'shuffled'
    """
    if name == "poisson":
        return PoissonSampling(expected_batch_size=expected_batch_size, records=records)
    if name == "without-replacement":
        return WithoutReplacement(sample_size=_whole(expected_batch_size), records=records)
    raise InvalidValue("sampling", allowed="one of " + ", ".join(NAMES) + _reason(name), given=name)


def _reason(name: str) -> str:
    if name not in _SHUFFLED:
        return ""
    return (
        ": shuffled epochs have no accountant here, and counting them as Poisson sampling understates ε,"
        " by up to four times in published runs"
    )


def _whole(expected_batch_size: float) -> int:
    if not float(expected_batch_size).is_integer():
        allowed = "a whole number where records are drawn without replacement"
        raise InvalidValue("expected_batch_size", allowed=allowed, given=expected_batch_size)
    return int(expected_batch_size)
