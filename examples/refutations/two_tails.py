"""SA-DPSGD charges accepted updates only (Fu et al. 2022, Theorem 1). One update is enough to refute that.

    python -m examples.refutations.two_tails

One Gaussian update, into which every record is drawn. A public rule accepts it only in its two far tails, where the
privacy loss is above the claimed ε, and up to ten rejections in a row are allowed: eleven chances to land there,
charged as one. The claimed δ is 1e-3 here and not 1e-5, so that half a million runs of each kind see enough of such
tails. Clip, noise and the annealed acceptance are the library's own. It takes a few seconds.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from examples.refutations.many_runs import KEY, Runs, clipped, released
from examples.refutations.refutation import Outcome, Refutation, main
from lehr import Gaussian, Repeated, bound
from lehr.auditing import Scores, bounds, errors_above
from lehr.extend import Annealed, ComponentState, PoissonSampling

SIGMA, MOST_REJECTIONS, DELTA = 1.23, 10, 1e-3
NUM_EACH = 500_000
CLAIMED = bound(Gaussian(SIGMA), delta=DELTA).epsilon
FAR = SIGMA**2 * CLAIMED  # how far from the middle the privacy loss reaches the claimed ε
# Eleven chances at a δ of an eleventh: as far as that is where the attacker says that the target is there.
FARTHER = SIGMA**2 * bound(Gaussian(SIGMA), delta=DELTA / (MOST_REJECTIONS + 1)).epsilon
STILL, RISE = 0.0, 100.0
# One update has been accepted before this one. In the paper's cooling the very first is accepted after one rejection.
STATE: ComponentState = {"accepted": 1, "rejected_in_a_row": 0, "inverse_temperature": 10.0}


def attacked(runs: Runs) -> tuple[Tensor, Tensor]:
    """The accepted update of every run, and the sum of all candidates of the library's plan, which has eleven."""
    sampling = PoissonSampling(expected_batch_size=1, records=1)  # every record, every time
    acceptance = Annealed(rejection_threshold=MOST_REJECTIONS)
    accepted, seen = torch.full((runs.num_runs,), math.nan, dtype=torch.float64), torch.zeros(runs.num_runs)
    state = STATE
    for step in range(MOST_REJECTIONS + 1):
        randomness = KEY.at(step, 0)
        private = clipped(runs.drawn(sampling.draw(len(runs.run_of), randomness)))
        update = released(private, noise_multiplier=SIGMA, randomness=randomness)
        change = torch.where((update - 0.5).abs() > FAR, STILL, RISE)
        uniforms = partial(randomness.uniforms, "acceptance", runs.num_runs)
        is_accepted, state = acceptance.decide_each(state, change, uniforms)
        accepted = torch.where(is_accepted & accepted.isnan(), update, accepted)
        seen = seen + update
    return accepted, seen


def refute(*, num_each: int = NUM_EACH) -> Refutation:
    runs = Runs(num_each=num_each)
    accepted, seen = map(runs.scores, attacked(runs))
    count = MOST_REJECTIONS + 1
    return Refutation(
        title=f"SA-DPSGD: one Gaussian update accepted in its far tails, sigma {SIGMA}, {num_each} + {num_each} runs",
        score="accepted update (left), sum of all candidates (right)",
        mistake=Outcome(
            form="the accepted update is charged",
            counted=CLAIMED,
            scores=accepted,
            certified=bounds.clopper_pearson(accepted, delta=DELTA, threshold=0.5 + FARTHER),
        ),
        own=Outcome(
            form=f"{count} candidates are charged",
            counted=bound(Repeated(Gaussian(SIGMA), count), delta=DELTA).epsilon,
            scores=seen,
            certified=bounds.known_variance(seen, std=SIGMA * math.sqrt(count), delta=DELTA),
        ),
        notes=(_delta_at_the_claimed_epsilon(accepted),),
    )


def _delta_at_the_claimed_epsilon(scores: Scores) -> str:
    """No smaller δ allows these rates; each of the two is bounded at half of the error probability."""
    errors = errors_above(scores, np.array([0.5 + FAR]))
    false_positive, false_negative = errors.upper_rates(error_probability=0.05)
    delta = 1 - float(false_negative[0]) - math.exp(CLAIMED) * float(false_positive[0])
    least = math.floor(10 * delta / DELTA) / 10
    return f"delta at the claimed epsilon is at least {least} times the claimed one, Clopper-Pearson, 95%"


if __name__ == "__main__":
    main(refute, picture="refuted_two_tails.svg")
