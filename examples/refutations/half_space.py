"""SA-DPSGD charges accepted updates only (Fu et al. 2022, Theorem 1). With its MNIST settings that is not enough.

    python -m examples.refutations.half_space

A public rule accepts an update whose part along the target's gradient is above a threshold: one candidate in five, or
the eleventh in a row. Sampler, clip, noise and the annealed acceptance are the library's own, for a few thousand
independent runs of one weight at once. The attacker of the paper's claim sees the accepted updates and nothing else;
the attacker of the library's own form sees every candidate. It takes less than a minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

from examples.published_claims import DELTA, SA_DPSGD, Floats, Update, by_paper, candidate, composed, tight
from examples.published_claims import half_space as accepted_law
from examples.refutations.many_runs import KEY, Runs, clipped, released
from examples.refutations.refutation import Outcome, Refutation, down, main
from lehr.auditing import Scores, bounds
from lehr.extend import Annealed, ComponentState, PoissonSampling

RATE = 0.2
NUM_EACH = 2000
CANDIDATES = 20_000  # the plan of the library's own form; the paper's rule needs about 21 500 for its accepted ones
MNIST = SA_DPSGD[0]
PROBABILITY, SIGMA = MNIST.sampling_probability, MNIST.noise_multiplier
THRESHOLD = SIGMA * float(special.ndtri(1 - RATE))
ACCEPTANCE = Annealed(rejection_threshold=MNIST.most_rejections)
# The energy does not rise on one side of the threshold; on the other by so much that no chance is left.
STILL, RISE = 0.0, 100.0


@dataclass(frozen=True)
class Seen:
    """What the attackers made of every run: a sum over its accepted updates, and one over its first candidates."""

    accepted: Scores
    candidates: Scores


def attacked(
    *,
    num_each: int = NUM_EACH,
    accepted: int = MNIST.accepted,
    candidates: int = CANDIDATES,
    acceptance: Annealed = ACCEPTANCE,
) -> Seen:
    """All runs to their last accepted update."""
    runs = Runs(num_each=num_each)
    sampling = PoissonSampling(expected_batch_size=MNIST.expected_batch_size, records=MNIST.records)
    of_accepted, of_candidates = torch.zeros(2, runs.num_runs, dtype=torch.float64)
    state: ComponentState = acceptance.start()
    is_running, step = torch.ones(runs.num_runs, dtype=torch.bool), 0
    while bool(is_running.any()) or step < candidates:
        randomness = KEY.at(step, 0)
        private = clipped(runs.drawn(sampling.draw(len(runs.run_of), randomness)))
        update = released(private, noise_multiplier=SIGMA, randomness=randomness)
        change = torch.where(update >= THRESHOLD, STILL, RISE)
        uniforms = partial(randomness.uniforms, "acceptance", runs.num_runs)
        is_accepted, state = acceptance.decide_each(state, change, uniforms)
        loss = loss_of_candidate(update)
        of_accepted += torch.where(is_accepted & is_running, loss + loss_of_acceptance(update), 0.0)
        if step < candidates:
            of_candidates += loss
        is_running = torch.as_tensor(state["accepted"]) < accepted
        step += 1
    return Seen(runs.scores(of_accepted), runs.scores(of_candidates))


def loss_of_candidate(update: Tensor) -> Tensor:
    """The log likelihood ratio of one candidate, with the target against without."""
    return torch.log1p(PROBABILITY * torch.expm1((2 * update - 1) / (2 * SIGMA**2)))


def loss_of_acceptance(update: Tensor) -> Tensor:
    """What acceptance adds to it: the ratio of the brackets of docs/published_claims.md, which has two values."""
    with_target = (1 - PROBABILITY) * RATE + PROBABILITY * float(special.ndtr((1 - THRESHOLD) / SIGMA))
    above = math.log(_above(with_target) / _above(RATE))
    below = MNIST.most_rejections * math.log((1 - with_target) / (1 - RATE))
    return torch.where(update >= THRESHOLD, above, below)


def _above(rate: float) -> float:
    forced = (1 - rate) ** MNIST.most_rejections
    return (1 - forced) / rate + forced


def known_std(law: Update, *, count: int, is_accepted: bool) -> float:
    """The standard deviation of a score of so many updates: the larger of those with and without the target."""
    centres = torch.from_numpy(np.concatenate([law.edges[1:2], (law.edges[1:-1] + law.edges[2:]) / 2, law.edges[-1:]]))
    losses = loss_of_candidate(centres) + (loss_of_acceptance(centres) if is_accepted else 0.0)
    return math.sqrt(count * max(_variance(losses.numpy(), masses) for masses in (law.without, law.present)))


def _variance(values: Floats, masses: Floats) -> float:
    return float(masses @ (values - masses @ values) ** 2)


def outcome(form: str, scores: Scores, *, counted: float, std: float) -> Outcome:
    found = bounds.known_variance(scores, std=std, delta=DELTA)
    return Outcome(form=form, counted=counted, scores=scores, certified=found)


def refute(*, num_each: int = NUM_EACH, accepted: int = MNIST.accepted, candidates: int = CANDIDATES) -> Refutation:
    seen = attacked(num_each=num_each, accepted=accepted, candidates=candidates)
    law = accepted_law(MNIST, rate=RATE)
    drawn = candidate(sampling_probability=PROBABILITY, noise_multiplier=SIGMA)
    std = known_std(law, count=accepted, is_accepted=True)
    true_at_least = composed(law, count=accepted).epsilon_at_least(DELTA)
    return Refutation(
        title=f"SA-DPSGD: {accepted} accepted updates of its MNIST run, half-space rule, {num_each} + {num_each} runs",
        score="sum of log likelihood ratios",
        mistake=outcome("accepted updates are charged", seen.accepted, counted=by_paper(MNIST, accepted), std=std),
        own=outcome(
            f"{candidates} candidates are charged",
            seen.candidates,
            counted=tight(MNIST, candidates),
            std=known_std(drawn, count=candidates, is_accepted=False),
        ),
        notes=(
            f"by composing the laws: true epsilon at least {down(true_at_least)}",
            f"standard deviation of the scores over the known one: {_ratios(seen.accepted, std)}",
            f"distance of their laws from normal ones (Kolmogorov-Smirnov): {_distances(seen.accepted, std)}",
        ),
    )


def _ratios(scores: Scores, std: float) -> str:
    deviation = 1 / math.sqrt(2 * len(scores.members))
    return f"{scores.members.std() / std:.3f} and {scores.others.std() / std:.3f}, each ± {deviation:.3f}"


def _distances(scores: Scores, std: float) -> str:
    """Where the law is normal, a distance is above the limit once in twenty times."""
    sides = (scores.members, scores.others)
    found = (float(stats.kstest((side - side.mean()) / std, "norm").statistic) for side in sides)
    return " and ".join(f"{value:.4f}" for value in found) + f"; {1.36 / math.sqrt(len(scores.members)):.4f} is usual"


if __name__ == "__main__":
    main(refute, picture="refuted_half_space.svg")
