from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.networks.layers import Gain, Standardised, freeze, standardise
from tests.gradients.oracle import batch, squared_distance


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).flatten(1).sum(1)


def test_the_gradient_of_a_gain_is_an_inner_product() -> None:
    inputs, targets = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain(0.5)).double(), losses, compiled=False).gradients(inputs, targets)
    expected = (inputs * targets).sum((1, 2, 3))
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)
    weights = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(found.weighted_sum(weights), {"0.factor": weights @ expected}, rtol=1e-12, atol=0)


def test_a_gain_averages_views() -> None:
    inputs, targets = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain()).double(), losses, views=2, compiled=False).gradients(inputs, targets)
    expected = (inputs.mean(1) * targets).sum(1)
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)


def test_a_standardised_weight_has_its_mean_and_variance() -> None:
    standardised = Standardised(5)
    torch.nn.init.constant_(standardised.gain, 3.0)
    weight = standardised(4 + 7 * torch.randn(5, 8, 3, 3))
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().sum((1, 2, 3)), torch.full((5,), 9.0))


def test_a_weight_without_variance_is_zero_and_not_nan() -> None:
    assert not Standardised(4)(torch.ones(4, 3, 3, 3)).any()


def test_every_convolution_of_a_network_is_standardised() -> None:
    layers = nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 4, 1)
    network = nn.Sequential(layers[0], nn.Sequential(layers[1]), nn.Linear(4, 2))
    standardise(network)
    gains = [name for name, _ in network.named_parameters() if name.endswith("gain")]
    assert gains == ["0.parametrizations.weight.0.gain", "1.0.parametrizations.weight.0.gain"]
    for layer in layers:
        torch.testing.assert_close(layer.weight.square().sum((1, 2, 3)), torch.ones(layer.out_channels))


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4)), *(nn.Tanh() for _ in range(7)))


def trained(given: nn.Module) -> list[str]:
    return [name for name, weight in given.named_parameters() if weight.requires_grad]


def test_parameters_below_a_path_are_frozen() -> None:
    assert trained(freeze(model(), "0")) == ["2.0.weight", "2.0.bias"]
    assert trained(freeze(model(), "2", "0.bias")) == ["0.weight"]
    similar = nn.ModuleDict({"conv": nn.Linear(1, 1), "conv2": nn.Linear(1, 1)})
    assert trained(freeze(similar, "conv")) == ["conv2.weight", "conv2.bias"]
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert trained(freeze(tied, "1.weight")) == ["1.bias"]


def test_the_engine_gives_no_gradient_for_frozen_parameters() -> None:
    torch.manual_seed(0)
    engine = GhostEngine(freeze(model(), "0").double(), squared_distance, compiled=False)
    sums = engine.gradients(*batch(3, 3)).weighted_sum(torch.ones(3, dtype=torch.float64))
    assert set(sums) == {"2.0.weight", "2.0.bias"}


@pytest.mark.parametrize("paths", [(), ("1",), ("5",), ("weight",), ("",), ("0.weight.x",)], ids=str)
def test_paths_without_parameters_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValue, match="path"):
        freeze(model(), *paths)
