"""What is tried next, and which trials are given up early: the samplers and pruners of Optuna, by their names.

Every trial has a generator of its own, seeded by the study's seed and the number of the trial: a search that is killed
and goes on never repeats what it drew before, and draws what it would have drawn.

Not in the list: CMA-ES, whose state Optuna keeps as a pickle, so that whoever may write to the database could run code
on every machine of the study.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

from optuna import pruners, samplers
from optuna.exceptions import ExperimentalWarning

from lehr import validate
from lehr.search.names import NO_PRUNER, PRUNERS, SAMPLERS

PRUNER_OF: Mapping[str, Callable[[], pruners.BasePruner]] = MappingProxyType(
    {
        NO_PRUNER: pruners.NopPruner,
        "median": pruners.MedianPruner,
        "hyperband": pruners.HyperbandPruner,
        "successive-halving": pruners.SuccessiveHalvingPruner,
    }
)


def sampler_for(name: str, *, seed: int, number: int) -> samplers.BaseSampler:
    """The sampler of this name for the trial of this number. A grid names its settings before, and samples nothing."""
    of_trial = _seed(seed, number)
    match validate.one_of(SAMPLERS, sampler=name):
        case "random" | "grid":
            return samplers.RandomSampler(seed=of_trial)
        case "qmc":
            return _quasi_random(_seed(seed, -1), samplers.RandomSampler(seed=of_trial))
        case "gp":
            beside = samplers.RandomSampler(seed=of_trial)
            return samplers.GPSampler(seed=of_trial, independent_sampler=beside, warn_independent_sampling=False)
        case _:
            return samplers.TPESampler(seed=of_trial)


def pruner_named(name: str) -> pruners.BasePruner:
    """The pruner of this name; what it counts are evaluations."""
    return PRUNER_OF[validate.one_of(PRUNERS, pruner=name)]()


def _quasi_random(seed: int, independent: samplers.BaseSampler) -> samplers.BaseSampler:
    """One sequence for the whole study, whose place is kept in the database."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # its interface may change; we use next to nothing of it
        return samplers.QMCSampler(
            scramble=True, seed=seed, independent_sampler=independent, warn_independent_sampling=False
        )


def _seed(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"lehr.search/{seed}/{number}".encode()).digest()[:4], "big")
