"""Networks that mix no records and keep no running statistics, so each can be trained privately as it is.

``build`` makes one by name, ``register`` adds one. ``with_activation`` swaps the activations of a model, and ``freeze``
leaves parts of it untrained.
"""

from __future__ import annotations

from lehr.networks.activations import BEST_TEMPERED_SIGMOIDS, TemperedSigmoid, with_activation
from lehr.networks.layers import freeze
from lehr.networks.registry import build, register

__all__ = ["BEST_TEMPERED_SIGMOIDS", "TemperedSigmoid", "build", "freeze", "register", "with_activation"]
