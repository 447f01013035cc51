"""Acceptance: whether a candidate becomes the next weights. Each candidate is charged, accepted or not."""

from __future__ import annotations

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.acceptance.rules import Always, BestStep, NoisyMax, NoisyTest, Salvage

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
