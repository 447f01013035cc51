"""Noise: the one way from a ``PrivateSum`` to a ``ReleasedSum``.

- ``isotropic``: the same Gaussian noise on every coordinate, scaled by the sum's own sensitivity
- ``none``: no noise, for comparison; its event tells every accountant that nothing is private
"""

from __future__ import annotations

from lehr.noise.isotropic import IsotropicNoise
from lehr.noise.none import NoNoise

__all__ = ["IsotropicNoise", "NoNoise"]
