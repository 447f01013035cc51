"""From a released sum to the next weights: optimizers and weight averages, all of it post-processing."""

from __future__ import annotations

from lehr.optim.averaging import ExponentialAverage, NoAverage, TailAverage
from lehr.optim.optimizers import Update, Updater, adam, adamw, custom, sgd
from lehr.schedules import Constant, Cosine, LinearDecay, LinearWarmup, PiecewiseLinear, StepDecay

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
