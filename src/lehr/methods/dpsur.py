"""DPSUR. Fu et al. (2024), "DPSUR: Accelerating Differentially Private Stochastic Gradient Descent Using Selective
Update and Release".

A candidate of DPSGD is accepted if the clipped and noised loss on a draw of private records falls. Every candidate is
charged for its gradient and for its test. The paper charges accepted candidates only, which is no guarantee, for the
same reason as in SA-DPSGD.
"""

from __future__ import annotations

from typing import Literal

from lehr.acceptance.proposal import PrivateEnergy
from lehr.acceptance.rules import NoisyTest
from lehr.accounting.claims import PublishedRule, published_rule
from lehr.config import CLIP_NORM, LEARNING_RATE, MOMENTUM
from lehr.optim.optimizers import BuildsOptimizer, sgd
from lehr.privacy.clipping import FlatClip, with_schedule
from lehr.privacy.noise import IsotropicNoise
from lehr.run.mechanism import Method
from lehr.schedules import CONSTANT, Schedule

PUBLISHED = PublishedRule(
    paper="DPSUR (Fu et al. 2024)",
    theorem="candidates that fail their test cost nothing",
    because="which candidates are released depends on the data, and a selected one is not Gaussian noise on a sum",
    shown_in="docs/published_claims.md",
    counts_accepted_only=True,
)


def dpsur(
    *,
    learning_rate: float = LEARNING_RATE,
    clip_norm: float = CLIP_NORM,
    momentum: float = MOMENTUM,
    loss_clip: float = 0.001,
    test_noise_multiplier: float = 1.0,
    test_batch_size: float = 256,
    threshold: float = -1.0,
    clipped: Literal["records", "batch"] = "batch",
    schedule: Schedule = CONSTANT,
    clip_schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
    accounting: Literal["proven", "published"] = "proven",
) -> Method:
    """DPSGD with a noisy test: accepted where the change of the loss is below ``threshold`` times ``loss_clip``.

    The test clips the mean of its batch, as in the paper, or with ``clipped="records"`` the change of every record.
    """
    energy = PrivateEnergy(
        loss_clip=loss_clip,
        noise_multiplier=test_noise_multiplier,
        expected_batch_size=test_batch_size,
        clipped=clipped,
    )
    return Method(
        name="dpsur",
        clipping=with_schedule(FlatClip(clip_norm), clip_schedule),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
        acceptance=NoisyTest(energy=energy, threshold=threshold),
        published=published_rule(PUBLISHED, accounting),
    )
