"""The network behind a projection."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.gradients.materialised import MaterialisedEngine
from lehr.networks import build
from lehr.networks.projected_mlp import Projection, projected_mlp
from tests.gradients.oracle import assert_agrees, assert_close, batch, loop, squared_distance


def small() -> nn.Sequential:
    torch.manual_seed(0)
    network = projected_mlp(inputs=12, dimensions=5, hidden=7, num_classes=3).double()
    network.get_buffer("projection.components").normal_()
    return network


def test_it_has_the_sizes_of_the_paper() -> None:
    network = projected_mlp()
    assert sum(weight.numel() for weight in network.parameters()) == 60 * 1000 + 1000 + 1000 * 10 + 10
    assert network.get_buffer("projection.components").shape == (784, 60)
    assert network(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    assert [type(layer) for layer in network] == [Projection, nn.Linear, nn.ReLU, nn.Linear]


def test_a_projection_is_a_product_with_its_components_and_begins_as_zero() -> None:
    layer, records = Projection(6, 2).double(), torch.randn(4, 1, 2, 3, dtype=torch.float64)
    assert not layer(records).any()
    layer.components.normal_()
    expected = torch.stack([record.reshape(-1) @ layer.components for record in records])
    torch.testing.assert_close(layer(records), expected)


def test_the_components_are_kept_with_the_weights_and_not_trained() -> None:
    network = small()
    assert "projection.components" in network.state_dict()
    assert not any("projection" in name for name, _ in network.named_parameters())


def test_both_engines_have_the_gradients_of_a_loop() -> None:
    network, (images, targets) = small(), batch(5, 1, 3, 4)
    assert_agrees(network, images, targets)
    found = MaterialisedEngine(network, squared_distance).gradients(images, targets)
    norms = torch.stack([grads.flatten(1).norm(dim=1) for grads in loop(network, images, targets).values()])
    assert_close(found.norms(), norms.norm(dim=0), tolerance=1e-10)


def test_one_whose_components_are_still_zero_can_be_differentiated() -> None:
    assert_agrees(projected_mlp(inputs=12, dimensions=5, hidden=7).double(), *batch(5, 12))


@pytest.mark.parametrize("name", ["inputs", "dimensions", "hidden"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_a_size_that_is_no_count_is_refused(name: str, value: float) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be a whole number >= 1"):
        build("projected_mlp", **{name: value})
