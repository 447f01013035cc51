"""AGD. Lee & Kifer (2018), "Concentrated Differentially Private Gradient Descent with Adaptive per-Iteration Privacy
Budget".

A noisy gradient gives a direction, and a noisy choice among step sizes decides how far to go. Where a step of zero
wins, the gradient was too noisy: it is measured again, with less noise, and averaged with the earlier ones. So the cost
of a step depends on earlier releases; all of it is charged, step by step, within a limit that was fixed beforehand.
"""

from __future__ import annotations

from lehr.acceptance.proposal import PrivateChoice
from lehr.acceptance.rules import NoisyMax, Salvage
from lehr.optim.optimizers import Update
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import BudgetedNoise
from lehr.run.mechanism import Method


def agd(
    *,
    clip_norm: float = 1.0,
    loss_clip: float = 3.0,
    choice_epsilon: float = 0.02,
    choice_batch_size: float | None = None,
    growth: float = 0.1,
    step_sizes: int = 20,
    largest_step: float = 2.0,
    adapted_every: int = 10,
    headroom: float = 0.1,
) -> Method:
    """``growth`` is the paper's γ; steps are at most ``largest_step`` long at first, in ``step_sizes`` equal parts.

    The choice uses all records, as in the paper, or a draw of an expected ``choice_batch_size``.
    """
    energy = PrivateChoice(loss_clip=loss_clip, epsilon=choice_epsilon, expected_batch_size=choice_batch_size)
    choice = NoisyMax(
        energy=energy, step_sizes=step_sizes, largest=largest_step, adapted_every=adapted_every, headroom=headroom
    )
    return Method(
        name="agd",
        clipping=FlatClip(clip_norm),
        noise=BudgetedNoise(growth=growth),
        update=Update(optimizer="normalised-sgd", learning_rate=1.0),
        acceptance=Salvage(choice),
    )
