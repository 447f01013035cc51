"""The network for MNIST of ADADP: a projection to a few principal components, then one wide layer.

Xu et al., "An Adaptive and Fast Convergent Approach to Differentially Private Deep Learning" (2020), take the network
of Abadi et al. (2016): 60 components from a private PCA, 1000 ReLUs, 10 scores.

>>> sum(parameter.numel() for parameter in projected_mlp().parameters())
71010
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.networks.activations import Activation


class Projection(nn.Module):
    """Flattens each record and projects it onto ``components``, a buffer of shape (inputs, dimensions).

    The components begin as zeros and are not trained. They become part of the model that is released: fill them from
    public records, or from a private PCA whose noise has been charged.
    """

    components: Tensor

    def __init__(self, inputs: int, dimensions: int) -> None:
        super().__init__()
        shape = validate.count(inputs=inputs), validate.count(dimensions=dimensions)
        self.register_buffer("components", torch.zeros(shape))

    def forward(self, records: Tensor) -> Tensor:
        return records.flatten(1) @ self.components

    def extra_repr(self) -> str:
        return f"inputs={self.components.shape[0]}, dimensions={self.components.shape[1]}"


def projected_mlp(
    *,
    inputs: int = 28 * 28,
    dimensions: int = 60,
    hidden: int = 1000,
    num_classes: int = 10,
    activation: Activation = nn.ReLU,
) -> nn.Sequential:
    """The network. Until ``projection.components`` is filled, it sees nothing of its records."""
    return nn.Sequential(
        OrderedDict(
            projection=Projection(inputs, dimensions),
            hidden=nn.Linear(dimensions, validate.count(hidden=hidden)),
            activation=activation(),
            scores=nn.Linear(hidden, num_classes),
        )
    )
