"""Acceptance: whether a candidate becomes the next weights. Each candidate is charged, accepted or not.

- ``always``: every candidate is
- ``annealed``: by simulated annealing over an energy
- ``noisy_test``: where the loss on private records is seen to fall, for DPSUR
- ``noisy_max``: at the step size that seems best on private records, for AGD
- ``salvage``: over the mean of all sums since the weights last moved, so that a rejected one is not lost
- ``best_step``: at the step size that is best on public records
- ``energy``: what may be asked about a candidate, and of whom
"""

from __future__ import annotations

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed
from lehr.acceptance.best_step import BestStep
from lehr.acceptance.energy import PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.acceptance.noisy_max import NoisyMax
from lehr.acceptance.noisy_test import NoisyTest
from lehr.acceptance.salvage import Salvage

__all__ = [
    "Always",
    "Annealed",
    "BestStep",
    "NoisyMax",
    "NoisyTest",
    "PrivateChoice",
    "PrivateEnergy",
    "PublicEnergy",
    "Salvage",
]
