"""A noisy sum over a drawn batch is divided by the number of records that were drawn. That number is private.

    python -m examples.refutations.drawn_size

Everybody else's gradient is +1 and the target's is -1, at clip norm 1. Divided by a public number, the target moves the
result by one unit at most. Divided by the drawn size it moves it by two: it takes its own gradient off the sum, and its
being counted shrinks the share of everybody else. The sampler, clip and noise are the library's own; the mistake is
the divisor. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from examples.refutations.many_runs import KEY, Drawn, Runs, clipped, released
from examples.refutations.refutation import Refutation, by_error_rates, down, main
from lehr import Gaussian, PoissonSampled, Repeated, bound
from lehr.auditing import Scores, bounds
from lehr.extend import PoissonSampling

NUM_EACH, NUM_OTHERS, STEPS, SIGMA, DELTA = 100_000, 20, 16, 8.0, 1e-5
SAMPLING = PoissonSampling(expected_batch_size=10, records=20)


def divided_by_the_drawn_size(noisy_sum: Tensor, drawn: Drawn) -> Tensor:
    """The mistake. Of an empty batch the noise is left as it is."""
    return noisy_sum / drawn.sizes_R.clamp_min(1)


def divided_by_a_public_number(noisy_sum: Tensor, drawn: Drawn) -> Tensor:
    """What the library does: the divisor is the batch size that the plan expects."""
    return noisy_sum / SAMPLING.expected_batch_size


def attacked(*, num_each: int = NUM_EACH) -> tuple[Scores, Scores]:
    """Minus the sum of the updates of every run, by either divisor: the target pulls it down."""
    runs = Runs(num_each=num_each, num_others=NUM_OTHERS, others_gradient=1.0, target_gradient=-1.0)
    by_drawn, by_public = torch.zeros(2, runs.num_runs, dtype=torch.float64)
    for step in range(STEPS):
        randomness = KEY.at(step, 0)
        drawn = runs.drawn(SAMPLING.draw(len(runs.run_of), randomness))
        noisy_sum = released(clipped(drawn), noise_multiplier=SIGMA, randomness=randomness)
        by_drawn -= divided_by_the_drawn_size(noisy_sum, drawn)
        by_public -= divided_by_a_public_number(noisy_sum, drawn)
    return runs.scores(by_drawn), runs.scores(by_public)


def refute(*, num_each: int = NUM_EACH) -> Refutation:
    event = Repeated(PoissonSampled(SAMPLING.sampling_probability, Gaussian(SIGMA)), STEPS)
    counted = bound(event, delta=DELTA).epsilon
    by_drawn, by_public = attacked(num_each=num_each)
    return Refutation(
        title=f"Divided by the drawn batch size: {STEPS} steps, sigma {SIGMA:g}, {num_each} + {num_each} runs",
        score="minus the sum of the updates",
        mistake=by_error_rates("divided by the drawn size", by_drawn, counted=counted, delta=DELTA),
        own=by_error_rates("divided by a public number", by_public, counted=counted, delta=DELTA),
        notes=(
            "assuming the trade-off curve of Gaussian noise, 95%: "
            f"at least {down(assuming_normal(by_drawn))}, and {down(assuming_normal(by_public))} by a public number",
        ),
    )


def assuming_normal(scores: Scores) -> float:
    """A second bound on the same scores, which wastes less and assumes something."""
    return bounds.gaussian_tradeoff(scores, delta=DELTA).epsilon


if __name__ == "__main__":
    main(refute, picture="refuted_drawn_size.svg")
