"""ADADP scales its noise by gradients that have none (Xu et al. 2020, Theorem 1), and so the noise tells on a record.

    python -m examples.refutations.raw_prior

Records are planted, each of which alone moves one coordinate, and a coin says of each whether it is there. If it is
not, its coordinate has no noise. The attack is that of examples/published_claims.py, through the library's own sampler,
clip and noise; here its scores certify a bound. It takes less than a minute.
"""

from __future__ import annotations

from examples.published_claims import (
    BATCH,
    DELTA,
    NOISE_MULTIPLIER,
    RECORDS,
    STEPS,
    Attacked,
    Setting,
    attacked,
    by_paper,
    tight,
)
from examples.refutations.refutation import Outcome, Refutation, by_error_rates, main
from lehr.auditing import Scores
from lehr.extend import RawPrior, ReleasedPrior

NUM_PLANTED = 200


def refute(*, steps: int = STEPS, num_planted: int = NUM_PLANTED) -> Refutation:
    setting = Setting("ADADP", RECORDS, BATCH, NOISE_MULTIPLIER, accepted=steps)
    published = attacked(RawPrior(), steps=steps, num_planted=num_planted)
    proven = attacked(ReleasedPrior(), steps=steps, num_planted=num_planted)
    return Refutation(
        title=f"ADADP: {num_planted} planted records, sigma* {NOISE_MULTIPLIER:g}, {steps} steps",
        score="logarithm of a coordinate's root mean square",
        mistake=outcome("prior of raw gradients", published, counted=by_paper(setting, steps)),
        own=outcome("prior of released values", proven, counted=tight(setting, steps)),
        notes=(
            f"the share of records got right: {published.success(published.sizes()):.3f}, "
            f"and {proven.success(proven.sizes()):.3f} by the library's own form",
        ),
    )


def outcome(form: str, seen: Attacked, *, counted: float) -> Outcome:
    sizes, is_present = seen.sizes(), seen.is_present
    scores = Scores(members=sizes[is_present].numpy(), others=sizes[~is_present].numpy())
    return by_error_rates(form, scores, counted=counted, delta=DELTA)


if __name__ == "__main__":
    main(refute, picture="refuted_raw_prior.svg")
