"""What must hold of the draws of a Poisson sampler, as p-values, and samplers of which it does not hold.

Axes: T steps, N records.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling

Draw = Callable[[int, StepRandomness], Tensor]
Drawn = NDArray[np.bool_]
KEY = RunKey(bytes(range(32)))
RECORDS = 400
STEPS = 3000


def drawn(draw: Draw, *, key: RunKey = KEY) -> Drawn:
    """Who was drawn in which step: ``drawn_TN``."""
    found = np.zeros((STEPS, RECORDS), dtype=bool)
    for step in range(STEPS):
        found[step, draw(RECORDS, key.at(step=step, attempt=0)).numpy()] = True
    return found


def batch_sizes(drawn_TN: Drawn, probability: float) -> float:
    """Whether the sizes of the draws follow the binomial law, by a chi-square test over bins of about equal mass."""
    law = stats.binom(RECORDS, probability)
    edges = np.unique(law.ppf(np.linspace(0, 1, 13)[1:-1]))
    bounds = np.concatenate([[-1], edges, [RECORDS]])
    observed = np.histogram(drawn_TN.sum(1), bins=bounds + 0.5)[0]
    return float(stats.chisquare(observed, STEPS * np.diff(law.cdf(bounds))).pvalue)


def rates(drawn_TN: Drawn, probability: float) -> float:
    """Whether each record is drawn at its rate, neither more nor less regularly than coins fall."""
    variance = STEPS * probability * (1 - probability)
    statistic = ((drawn_TN.sum(0) - STEPS * probability) ** 2 / variance).sum()
    return two_sided(stats.chi2(RECORDS), statistic)


def between_steps(drawn_TN: Drawn, probability: float) -> float:
    """Whether two steps have as many records in common as independent ones have."""
    both = drawn_TN[0::2] & drawn_TN[1::2]
    return two_sided(stats.binom(both.size, probability**2), both.sum())


def between_records(drawn_TN: Drawn, probability: float, *, distance: int = 1) -> float:
    """Whether two records are drawn together as often as independent ones are; no record is in two pairs."""
    first = [i for i in range(RECORDS - distance) if (i // distance) % 2 == 0]
    both = drawn_TN[:, first] & drawn_TN[:, [i + distance for i in first]]
    return two_sided(stats.binom(both.size, probability**2), both.sum())


def two_sided(law: stats.distributions.rv_frozen, value: float) -> float:
    return float(min(1, 2 * min(law.cdf(value), law.sf(value - 1e-9))))


def at_rate(probability: float) -> Draw:
    return PoissonSampling(expected_batch_size=probability * RECORDS, records=RECORDS).draw


def of_fixed_size(probability: float) -> Draw:
    size = round(probability * RECORDS)
    return lambda num_records, randomness: randomness.uniforms("order", num_records).argsort()[:size]


def shuffled(probability: float) -> Draw:
    """Epochs: the records are put in a random order, which is then read batch by batch."""
    size = round(probability * RECORDS)
    per_epoch = RECORDS // size

    def draw(num_records: int, randomness: StepRandomness) -> Tensor:
        epoch, batch = divmod(randomness.step, per_epoch)
        order = randomness.key.at(step=epoch, attempt=0).uniforms("order", num_records).argsort()
        return order[batch * size : (batch + 1) * size]

    return draw


def with_one_key_for_all_steps(probability: float) -> Draw:
    draw = at_rate(probability)
    return lambda num_records, randomness: draw(num_records, randomness.key.at(step=0, attempt=0))


def with_a_step_used_twice(probability: float) -> Draw:
    draw = at_rate(probability)
    return lambda num_records, randomness: draw(num_records, randomness.key.at(step=randomness.step // 2, attempt=0))


def in_pairs(probability: float) -> Draw:
    """Each pair of neighbours has one coin."""

    def draw(num_records: int, randomness: StepRandomness) -> Tensor:
        pairs = (randomness.uniforms("pairs", num_records // 2) < probability).nonzero().squeeze(1)
        return torch.cat([2 * pairs, 2 * pairs + 1])

    return draw


def without_neighbours(probability: float) -> Draw:
    """A jump that is one too long: after a record that was drawn, the next one never is."""
    draw = at_rate(probability)

    def spread(num_records: int, randomness: StepRandomness) -> Tensor:
        indices = draw(num_records, randomness)
        moved = indices + torch.arange(len(indices))
        return moved[moved < num_records]

    return spread
