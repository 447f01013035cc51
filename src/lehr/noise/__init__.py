"""Noise: the one way from a ``PrivateSum`` to a ``ReleasedSum``.

- ``isotropic``: the same Gaussian noise on every coordinate, scaled by the sum's own sensitivity
- ``shaped``: a standard deviation for each coordinate, scaled so that it is worth as much
- ``proportional``: shaped by the bounds of the coordinates, for ADADP
- ``optimised``: shaped so that the loss is moved least, for DPOPT
- ``budgeted``: isotropic, and finer after a candidate was refused, for AGD
- ``none``: no noise, for comparison; its event tells every accountant that nothing is private
"""

from __future__ import annotations

from lehr.noise.budgeted import BudgetedNoise
from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.none import NoNoise
from lehr.noise.optimised import OptimisedNoise
from lehr.noise.proportional import ProportionalNoise

__all__ = ["BudgetedNoise", "IsotropicNoise", "NoNoise", "OptimisedNoise", "ProportionalNoise"]
