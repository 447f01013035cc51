"""A drawn batch that is empty is skipped, so that the number of steps which come out follows the records.

    python -m examples.refutations.empty_batches

Few records are held, and a batch is often empty; less often with the target than without it. The attacker looks at no
value at all and counts the steps, so that no noise helps. Sampler, clip and noise are the library's own; the mistake is
one line that skips. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from examples.refutations.many_runs import KEY, Drawn, Runs, clipped, released
from examples.refutations.refutation import Refutation, by_error_rates, down, main
from lehr import Gaussian, PoissonSampled, Repeated, bound
from lehr.auditing import Scores, bounds
from lehr.extend import PoissonSampling

NUM_EACH, NUM_OTHERS, STEPS, SIGMA, DELTA = 10_000, 5, 400, 20.0, 1e-5
SAMPLING = PoissonSampling(expected_batch_size=0.3, records=6)


def skipping(noisy_sum: Tensor, drawn: Drawn) -> Tensor:
    """The mistake: where nobody was drawn, nothing comes out, which is written as NaN."""
    return torch.where(drawn.sizes_R > 0, noisy_sum, torch.nan)


def attacked(*, num_each: int = NUM_EACH) -> tuple[Scores, Scores, Scores]:
    """How many steps came out of every run with the mistake and without it, and the sum of what came out then."""
    runs = Runs(num_each=num_each, num_others=NUM_OTHERS)
    skipped, stepped, summed = torch.zeros(3, runs.num_runs, dtype=torch.float64)
    for step in range(STEPS):
        randomness = KEY.at(step, 0)
        drawn = runs.drawn(SAMPLING.draw(len(runs.run_of), randomness))
        noisy_sum = released(clipped(drawn), noise_multiplier=SIGMA, randomness=randomness)
        skipped += skipping(noisy_sum, drawn).isfinite()
        stepped += noisy_sum.isfinite()
        summed += noisy_sum
    return runs.scores(skipped), runs.scores(stepped), runs.scores(summed)


def refute(*, num_each: int = NUM_EACH) -> Refutation:
    event = Repeated(PoissonSampled(SAMPLING.sampling_probability, Gaussian(SIGMA)), STEPS)
    counted = bound(event, delta=DELTA).epsilon
    skipped, stepped, summed = attacked(num_each=num_each)
    by_sum = bounds.clopper_pearson(summed, delta=DELTA).epsilon
    return Refutation(
        title=f"Empty batches skipped: {STEPS} draws, sigma {SIGMA:g}, {num_each} + {num_each} runs",
        score="number of steps that came out",
        mistake=by_error_rates("empty batches are skipped", skipped, counted=counted, delta=DELTA),
        own=by_error_rates("a step with noise alone", stepped, counted=counted, delta=DELTA),
        notes=(f"the library's own form by the sum of what came out: at least {down(by_sum)}",),
    )


if __name__ == "__main__":
    main(refute, picture="refuted_empty_batches.svg")
