"""Update: from a released sum to the next weights.

- ``torch_optim``: a torch optimizer over released sums; the only writer of ``p.grad``
- ``averaging``: means of the weights, beside the optimizer
"""

from __future__ import annotations

from lehr.schedules import Constant, Cosine, LinearDecay, LinearWarmup, PiecewiseLinear, StepDecay
from lehr.update.averaging import ExponentialAverage, NoAverage, TailAverage
from lehr.update.torch_optim import Update, Updater, adam, adamw, custom, sgd

__all__ = [
    "Constant",
    "Cosine",
    "ExponentialAverage",
    "LinearDecay",
    "LinearWarmup",
    "NoAverage",
    "PiecewiseLinear",
    "StepDecay",
    "TailAverage",
    "Update",
    "Updater",
    "adam",
    "adamw",
    "custom",
    "sgd",
]
