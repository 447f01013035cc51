"""Schedules with very many noise levels, counted at fewer of them, each a little lower than the truth.

A step with less noise loses no less: adding the missing noise to its outcome gives the other one. So any noise
multiplier may be replaced by a smaller one of the same schedule, and what is counted is an upper bound.

>>> from lehr.accounting.events import Gaussian, PoissonSampled
>>> steps = {PoissonSampled(0.01, Gaussian(1 + step / 1000)): 1 for step in range(1000)}
>>> fewer = with_fewer_levels(steps)
>>> len(fewer) <= MOST_LEVELS, sum(fewer.values())
(True, 1000)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lehr.accounting.closed_forms import SMALLEST_NOISE
from lehr.accounting.events import Atom, PoissonSampled, SampledWithoutReplacement

MOST_LEVELS = 96  # some 4 s of counting; ε of usual schedules is then within 1 % of that of all levels

_STEEPNESS = 4  # the cost of a step falls about as this power of its noise, more at large Rényi orders
_DIGITS = 12  # of noise ratios, so that a schedule and its multiple, rounded otherwise, have the same levels

Sampled = PoissonSampled | SampledWithoutReplacement


def with_fewer_levels(counts: Mapping[Atom, int], *, most: int = MOST_LEVELS) -> dict[Atom, int]:
    """The same counts, or, of sampled steps at more than ``most`` noise levels, fewer levels that lose no less.

    Each way of sampling keeps one level at least.
    """
    sampled = [atom for atom in counts if isinstance(atom, Sampled)]
    if len(sampled) <= most:
        return dict(counts)
    lowered = _lowered(sampled, counts, most)
    fewer: dict[Atom, int] = {}
    for atom, count in counts.items():
        level = lowered.get(atom, atom)
        fewer[level] = fewer.get(level, 0) + count
    return fewer


def _lowered(sampled: Sequence[Sampled], counts: Mapping[Atom, int], most: int) -> dict[Atom, Atom]:
    """For each step the one of the same sampling that it is counted as, with no more noise than its own."""
    groups: dict[tuple[float, ...], list[Sampled]] = {}
    for atom in sorted(sampled, key=lambda atom: atom.event.noise_multiplier):
        if isinstance(atom, PoissonSampled):
            groups.setdefault((atom.sampling_probability,), []).append(atom)
        else:
            groups.setdefault((atom.records, atom.sample_size), []).append(atom)
    distances = [_distances(group, counts) for group in groups.values()]
    spare, total = max(most - len(groups), 0), sum(float(distance[-1]) for distance in distances)
    lowered: dict[Atom, Atom] = {}
    for group, distance in zip(groups.values(), distances, strict=True):
        levels = 1 + int(spare * (distance[-1] / total)) if total else 1
        intervals = np.minimum(levels * (distance / (distance[-1] or 1.0)), levels - 1).astype(int)
        firsts = np.searchsorted(intervals, intervals)
        lowered |= {atom: group[first] for atom, first in zip(group, firsts, strict=True)}
    return lowered


def _distances(group: Sequence[Sampled], counts: Mapping[Atom, int]) -> NDArray[np.float64]:
    """How far each level lies from the least noisy one, so that equal distances are equally bad to round away.

    Rounding all of an interval to its end adds its number of steps times its width in cost, and the sum of these over
    all intervals is least where each has the same sum of square roots (Panter & Dite 1951). Only ratios of noise
    count, so that a schedule and its multiple are rounded alike, and a search for the right multiple meets no jumps.
    """
    first = group[0]
    rate = first.sampling_probability if isinstance(first, PoissonSampled) else first.sample_size / first.records
    sigmas = np.maximum([atom.event.noise_multiplier for atom in group], SMALLEST_NOISE)
    costs = np.round(sigmas[0] / sigmas, _DIGITS) ** _STEEPNESS * rate**2
    steps = np.array([counts[atom] for atom in group[1:]], dtype=float)
    distances = np.concatenate([[0.0], np.cumsum(np.sqrt(steps * (costs[:-1] - costs[1:])))])
    return distances if distances[-1] > 0 else np.arange(len(group), dtype=float)  # no double tells the costs apart
