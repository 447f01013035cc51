"""SA-DPSGD. Fu et al. (2022), "SA-DPSGD: Differentially Private Stochastic Gradient Descent based on Simulated
Annealing".

A candidate of DPSGD is taken if the loss on public records falls, and otherwise with a probability that shrinks as
training goes on. Every candidate is charged, taken or not, and their number is the plan's. The paper charges those that
were taken; that is not a guarantee (``acceptance/annealed.proof.md``).
"""

from __future__ import annotations

from lehr.acceptance.annealed import Annealed
from lehr.clipping.flat import FlatClip
from lehr.mechanism import Method
from lehr.noise.isotropic import IsotropicNoise
from lehr.update.schedules import CONSTANT, Schedule
from lehr.update.torch_optim import BuildsOptimizer, sgd


def sa_dpsgd(
    *,
    learning_rate: float = 0.5,
    clip_norm: float = 0.1,
    momentum: float = 0.9,
    initial_inverse_temperature: float = 10.0,
    rejection_threshold: int = 10,
    schedule: Schedule = CONSTANT,
    update: BuildsOptimizer | None = None,
) -> Method:
    """DPSGD with annealed acceptance. Needs public records, which are then not scored on."""
    return Method(
        name="sa-dpsgd",
        clipping=FlatClip(clip_norm),
        noise=IsotropicNoise(),
        update=update or sgd(learning_rate, momentum=momentum, schedule=schedule),
        acceptance=Annealed(
            initial_inverse_temperature=initial_inverse_temperature, rejection_threshold=rejection_threshold
        ),
    )
