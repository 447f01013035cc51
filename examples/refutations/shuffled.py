"""Batches are cut from shuffled records, and counted as if a coin had been thrown for every record at every step.

    python -m examples.refutations.shuffled

Everybody else's gradient is -1 and the target's is +1, at clip norm 1. In a shuffled epoch each record is in exactly
one batch and all batches have their known size, so that the batch of the target stands out: the largest sum of the
epoch gives it away (Chua et al. 2024, Annamalai et al. 2024). With coins, the sizes of the batches hide it. Clip and
noise are the library's own; the mistake is the sampler. It takes a few seconds.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from examples.refutations.many_runs import KEY, Runs, clipped, released
from examples.refutations.refutation import Refutation, by_error_rates, main
from lehr import Gaussian, InvalidValue, PoissonSampled, Repeated, bound
from lehr.auditing import Scores
from lehr.extend import PoissonSampling, StepRandomness, adjacency_of

NUM_EACH, BATCH, STEPS, SIGMA, DELTA = 30_000, 2, 100, 0.8, 1e-5
RECORDS = BATCH * STEPS  # with the target; without it the last batch is one short, as in any loader


def shuffled(runs: Runs, randomness: StepRandomness) -> Iterator[Tensor]:
    """The mistake: the places of every batch of one epoch, in an order drawn for each run."""
    count = len(runs.run_of)
    order = torch.argsort(runs.run_of + randomness.uniforms("shuffling", count))
    sizes = torch.bincount(runs.run_of, minlength=runs.num_runs)
    position = torch.arange(count) - (sizes.cumsum(0) - sizes)[runs.run_of[order]]
    batch = position // BATCH
    by_batch = order[torch.argsort(batch, stable=True)]
    ends = torch.bincount(batch, minlength=STEPS).cumsum(0)
    yield from by_batch.tensor_split(ends[:-1])


def coins(runs: Runs, randomness: StepRandomness) -> Iterator[Tensor]:
    """What the library does: as many steps, each with a coin for every record."""
    sampling = PoissonSampling(expected_batch_size=BATCH, records=RECORDS)
    for step in range(STEPS):
        yield sampling.draw(len(runs.run_of), KEY.at(step, randomness.attempt))


def largest(runs: Runs, batches: Iterator[Tensor], *, attempt: int) -> Scores:
    """The largest sum of the epoch, over that of a batch without the target."""
    found = torch.full((runs.num_runs,), -torch.inf, dtype=torch.float64)
    for step, places in enumerate(batches):
        noisy_sum = released(clipped(runs.drawn(places)), noise_multiplier=SIGMA, randomness=KEY.at(step, attempt))
        found = torch.maximum(found, noisy_sum + BATCH)
    return runs.scores(found)


def refute(*, num_each: int = NUM_EACH) -> Refutation:
    runs = Runs(num_each=num_each, num_others=RECORDS - 1, others_gradient=-1.0, target_gradient=1.0)
    counted = bound(Repeated(PoissonSampled(BATCH / RECORDS, Gaussian(SIGMA)), STEPS), delta=DELTA).epsilon
    by_shuffle = largest(runs, shuffled(runs, KEY.at(0, 0)), attempt=0)
    by_coins = largest(runs, coins(runs, KEY.at(0, 1)), attempt=1)
    return Refutation(
        title=f"Shuffled, counted as Poisson: an epoch of {STEPS}, sigma {SIGMA:g}, {num_each} + {num_each} runs",
        score="largest sum of the epoch",
        mistake=by_error_rates("shuffled batches", by_shuffle, counted=counted, delta=DELTA),
        own=by_error_rates("a coin for every record", by_coins, counted=counted, delta=DELTA),
        notes=(f'asked for sampling="shuffled", the library says: {refusal()}',),
    )


def refusal() -> str:
    """What the library answers to somebody who asks for this mistake."""
    try:
        adjacency_of("shuffled")
    except InvalidValue as error:
        return str(error).partition(": ")[2].partition(",")[0]
    return "nothing"


if __name__ == "__main__":
    main(refute, picture="refuted_shuffled.svg")
