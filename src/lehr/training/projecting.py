"""A private PCA in front of a network: its projection is found once, before the first step, and charged.

The network has one ``Projection`` layer. Its components come from the noisy second-moment matrix of the records that
are trained on; they are released values, and stay in the model as a buffer that no step moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lehr.data.private_pca import PrivatePCA
from lehr.errors import InvalidValue
from lehr.interfaces import Inputs, Records
from lehr.networks.projected_mlp import Projection
from lehr.noise.isotropic import IsotropicNoise
from lehr.rng import StepRandomness


def a_private_pca(given: PrivatePCA | Mapping[str, Any] | None) -> PrivatePCA | None:
    """The PCA, perhaps from its JSON form."""
    return PrivatePCA.from_json(dict(given)) if isinstance(given, Mapping) else given


def projection_of(model: nn.Module, pca: PrivatePCA | None) -> Projection | None:
    """The layer that a PCA fills; refused where one of the two is missing, or they do not fit."""
    found = [layer for layer in model.modules() if isinstance(layer, Projection)]
    if pca is None and not found:
        return None
    if pca is None:
        allowed = "given for a network with a projection: its components are zero, and nothing would pass"
        raise InvalidValue("private_pca", allowed=allowed, given=None)
    if len(found) != 1:
        raise InvalidValue("model", allowed="one with a single Projection layer for private_pca", given=len(found))
    if found[0].components.shape[1] != pca.dimensions:
        allowed = f"{found[0].components.shape[1]} dimensions, as many as the projection of the model has"
        raise InvalidValue("private_pca", allowed=allowed, given=pca.dimensions)
    return found[0]


def fill(
    projection: Projection,
    pca: PrivatePCA,
    randomness: StepRandomness,
    *,
    private: Records,
    prepare: Callable[[Inputs], Inputs],
    sensitivity_factor: float,
) -> None:
    """Find the components with their noise, and put them into the layer."""
    inputs = projection.components.shape[0]
    released = IsotropicNoise().release(
        pca.private_moment(private, prepare, inputs),
        noise_multiplier=sensitivity_factor * pca.noise_multiplier,
        randomness=randomness,
        purpose="private PCA",
    )
    projection.components.copy_(pca.components(released, inputs))
