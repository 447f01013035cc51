"""Acceptance: whether a candidate becomes the next weights. Each candidate is charged, accepted or not.

- ``always``: every candidate is
- ``annealed``: by simulated annealing over a public energy, with its proof beside it
"""

from __future__ import annotations

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed

__all__ = ["Always", "Annealed"]
