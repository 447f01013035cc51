"""DPSUR. Fu et al. (2024), "DPSUR: Accelerating Differentially Private Stochastic Gradient Descent Using Selective
Update and Release".

A candidate of DPSGD is taken if the loss on a draw of private records falls, as seen through clip and noise. Every
candidate is charged for its gradient and for its test. The paper charges candidates that were taken; that is not a
guarantee, for the reason that SA-DPSGD's is not.
"""

from __future__ import annotations

from typing import Literal

from lehr.acceptance.energy import PrivateEnergy
from lehr.acceptance.noisy_test import NoisyTest
from lehr.claims import PublishedRule
from lehr.clipping.flat import FlatClip
from lehr.clipping.scheduled import with_schedule
from lehr.mechanism import Method
from lehr.methods.accounting import an_accounting
from lehr.noise.isotropic import IsotropicNoise
from lehr.schedules import CONSTANT, Schedule
from lehr.update.torch_optim import BuildsOptimizer, sgd

PUBLISHED = PublishedRule(
    paper="DPSUR (Fu et al. 2024)",
    theorem="candidates that fail their test cost nothing",
    because="conditioning on the test tilts the law of what is released, and the number of candidates depends on it",
    shown_in="docs/published_claims.md",
    counts_accepted_only=True,
)


def dpsur(
    *,
    learning_rate: float = 0.5,
    clip_norm: float = 0.1,
    momentum: float = 0.9,
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
    """DPSGD with a noisy test: taken where the change of the loss is below ``threshold`` times ``loss_clip``.

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
        published=PUBLISHED if an_accounting(accounting=accounting) == "published" else None,
    )
