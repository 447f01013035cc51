"""The sweeps of SA-DPSGD's Figure 4, on MNIST: one setting at a time is moved, the others stay as in its Table 2.

The paper names the range of the rate and the best points, and no others: which points there are besides is ours. The
number of accepted steps is what the published rule allows at ε 3 with each batch. A batch of 128 would be allowed
79,860 of them, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lehr.papers.sa_dpsgd_runs import MNIST, Setting

STEPS_OF_BATCHES: Mapping[int, int] = MappingProxyType({256: 19_582, 512: 4698, 1024: 1076, 2048: 220})
_EVALUATIONS = MappingProxyType({256: 500, 512: MNIST.evaluate_every, 1024: 50, 2048: 10})

RATES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
TEMPERATURES = (0.1, 1.0, 10.0, 100.0)
THRESHOLDS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A setting that is moved: its values, the settings that they give, and what the paper prints at some of them."""

    title: str
    points: tuple[tuple[float, Setting], ...]
    printed: Mapping[float, float]


def with_batch(batch: int) -> Setting:
    """MNIST with another batch, and as many steps as that may have."""
    return replace(MNIST, batch=batch, steps=STEPS_OF_BATCHES[batch], evaluate_every=_EVALUATIONS[batch])


SWEEPS = (
    Sweep(
        title="learning rate",
        points=tuple((rate, replace(MNIST, rate=rate)) for rate in RATES),
        printed=MappingProxyType({1.5: 0.9881}),
    ),
    Sweep(
        title="batch size",
        points=tuple((batch, with_batch(batch)) for batch in STEPS_OF_BATCHES),
        printed=MappingProxyType({256: 0.9889}),
    ),
    Sweep(
        title="initial temperature Q0",
        points=tuple((value, replace(MNIST, initial_inverse_temperature=value)) for value in TEMPERATURES),
        printed=MappingProxyType({}),
    ),
    Sweep(
        title="rejection threshold",
        points=tuple((value, replace(MNIST, rejection_threshold=value)) for value in THRESHOLDS),
        printed=MappingProxyType({}),
    ),
)
