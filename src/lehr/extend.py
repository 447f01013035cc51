"""The extension points: protocols to implement, what an implementation receives and returns, and ready components.

- clip gradients: ``Clipping`` makes a ``ClipRule`` for each step, which turns ``RecordGradients`` into a ``PrivateSum``
- add noise: ``Noise`` turns a ``PrivateSum`` into a ``ReleasedSum``
- update weights: ``BuildsOptimizer``, ``Averaging``, ``Schedule``
- accept or reject a candidate: ``Acceptance`` decides on a ``Proposal``
- combine them into a ``Method``
- differentiate a layer: ``LayerRule`` and ``register_layer_rule``
- read records: ``Records``; follow a run: ``Callback``

Components to combine or to build on:

- draw and clip: ``PoissonSampling``, ``NormClip``, ``FlatClip``, ``PerLayerClip``, ``QuantileClip``,
  ``Unclipped``, ``AdaptiveClip`` with a ``Prior``
- noise and updates: ``IsotropicNoise``, ``ProportionalNoise``, ``Update``, ``Cosine``, ``LinearDecay``, ``StepDecay``
- accept: ``Annealed``, ``Salvage``
- gradients by hand: ``GhostEngine``, ``MaterialisedEngine``, ``sum_parts``; random numbers: ``RunKey``
"""

from __future__ import annotations

from lehr.acceptance import Annealed, Salvage
from lehr.acceptance.proposal import Acceptance, Proposal
from lehr.gradients.conversion import group_norm_instead
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import (
    Clipping,
    ClipRule,
    ComponentState,
    Contribution,
    CoordinateGradients,
    Groups,
    LayerRule,
    PrivateSum,
    RecordGradients,
    Records,
    ReleasedSum,
    Site,
    StepOutcome,
    register_layer_rule,
)
from lehr.optim.averaging import Averaging
from lehr.optim.optimizers import BuildsOptimizer, Update
from lehr.privacy.clipping import (
    AdaptiveClip,
    FlatClip,
    NormClip,
    PerLayerClip,
    Prior,
    QuantileClip,
    RawPrior,
    ReleasedPrior,
    Unclipped,
)
from lehr.privacy.noise import IsotropicNoise, ProportionalNoise
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling, adjacency_of
from lehr.run.mechanism import Method, Noise, sum_parts
from lehr.run.shape import Callback
from lehr.schedules import Cosine, LinearDecay, Schedule, StepDecay

__all__ = [
    "Acceptance",
    "AdaptiveClip",
    "Annealed",
    "Averaging",
    "BuildsOptimizer",
    "Callback",
    "ClipRule",
    "Clipping",
    "ComponentState",
    "Contribution",
    "CoordinateGradients",
    "Cosine",
    "FlatClip",
    "GhostEngine",
    "Groups",
    "IsotropicNoise",
    "LayerRule",
    "LinearDecay",
    "MaterialisedEngine",
    "Method",
    "Noise",
    "NormClip",
    "PerLayerClip",
    "PoissonSampling",
    "Prior",
    "PrivateSum",
    "ProportionalNoise",
    "Proposal",
    "QuantileClip",
    "RawPrior",
    "RecordGradients",
    "Records",
    "ReleasedPrior",
    "ReleasedSum",
    "RunKey",
    "Salvage",
    "Schedule",
    "Site",
    "StepDecay",
    "StepOutcome",
    "StepRandomness",
    "Unclipped",
    "Update",
    "adjacency_of",
    "group_norm_instead",
    "register_layer_rule",
    "sum_parts",
]
