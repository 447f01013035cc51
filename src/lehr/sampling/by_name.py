"""The samplers by the names they have in a configuration, and by the adjacency that each is counted under."""

from __future__ import annotations

from lehr.errors import InvalidValue
from lehr.events import Adjacency
from lehr.sampling.poisson import PoissonSampling
from lehr.sampling.without_replacement import WithoutReplacement

Sampling = PoissonSampling | WithoutReplacement

SAMPLERS: dict[str, type[PoissonSampling] | type[WithoutReplacement]] = {
    "poisson": PoissonSampling,
    "without-replacement": WithoutReplacement,
}
_SHUFFLED = ("shuffled", "shuffle", "epochs", "shuffled-epochs")


def adjacency_of(sampling: str) -> Adjacency:
    """Which data sets are neighbours under a sampling.

    >>> adjacency_of("shuffled")
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: sampling must be one of poisson, without-replacement: shuffled epochs have no accountant \
here, and counting them as Poisson sampling understates ε, by up to four times in published runs; given: 'shuffled'
    """
    if sampling not in tuple(SAMPLERS):  # a file may say a list, which a dict cannot be asked for
        raise InvalidValue("sampling", allowed="one of " + ", ".join(SAMPLERS) + _reason(sampling), given=sampling)
    return SAMPLERS[sampling].adjacency


def name_of(adjacency: Adjacency) -> str:
    """The sampling under which these are neighbours."""
    return next(name for name, sampler in SAMPLERS.items() if sampler.adjacency is adjacency)


def counted_under(adjacency: Adjacency, *, expected_batch_size: float, records: int) -> Sampling:
    """The sampler that has an accountant under an adjacency."""
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        return PoissonSampling(expected_batch_size=expected_batch_size, records=records)
    return WithoutReplacement(sample_size=_whole(expected_batch_size), records=records)


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
