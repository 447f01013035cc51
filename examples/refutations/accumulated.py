"""Batches are accumulated, and the noise covers one of them.

    python -m examples.refutations.accumulated

Clipped sums are added up until a step is taken. Where what was added up is not cleared afterwards, the next step
releases it again together with its own batch, with the noise for one batch; a review of Opacus' accumulation notes that
two steps without a ``zero_grad`` between them do this (PR#203). The target, once drawn, is in every later release, and
the noise averages away. Sampler, clip, noise and the adding up of physical batches are the library's own; the mistake
is a list that is not emptied. It takes a few seconds.
"""

from __future__ import annotations

import torch

from examples.refutations.many_runs import KEY, Runs, clipped, released
from examples.refutations.refutation import Refutation, by_error_rates, main
from lehr import Gaussian, PoissonSampled, Repeated, bound
from lehr.auditing import Scores
from lehr.extend import PoissonSampling, PrivateSum, sum_parts

NUM_EACH, STEPS, SIGMA, DELTA = 10_000, 100, 4.0, 1e-5
SAMPLING = PoissonSampling(expected_batch_size=10, records=200)
PHYSICAL_BATCHES = 2


def attacked(*, num_each: int = NUM_EACH, is_cleared: bool) -> Scores:
    """The sum of all releases of every run."""
    runs = Runs(num_each=num_each)
    total = torch.zeros(runs.num_runs, dtype=torch.float64)
    parts: list[PrivateSum] = []
    for step in range(STEPS):
        if is_cleared:  # the mistake is to leave this out
            parts = []
        randomness = KEY.at(step, 0)
        places = SAMPLING.draw(len(runs.run_of), randomness)
        physical = [clipped(runs.drawn(part)) for part in places.tensor_split(PHYSICAL_BATCHES)]
        parts = [sum_parts([*parts, *physical])]
        total += released(parts[0], noise_multiplier=SIGMA, randomness=randomness)
    return runs.scores(total)


def refute(*, num_each: int = NUM_EACH) -> Refutation:
    event = Repeated(PoissonSampled(SAMPLING.sampling_probability, Gaussian(SIGMA)), STEPS)
    counted = bound(event, delta=DELTA).epsilon
    return Refutation(
        title=f"Accumulated without noise: {STEPS} steps, sigma {SIGMA:g}, {num_each} + {num_each} runs",
        score="sum of all releases",
        mistake=by_error_rates(
            "noise for one of many batches", attacked(num_each=num_each, is_cleared=False), counted=counted, delta=DELTA
        ),
        own=by_error_rates(
            "noise for all that is released", attacked(num_each=num_each, is_cleared=True), counted=counted, delta=DELTA
        ),
    )


if __name__ == "__main__":
    main(refute, picture="refuted_accumulated.svg")
