from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.networks.layers import Gain, Standardised, freeze, standardise, standardised_convolution
from tests.gradients.oracle import batch, squared_distance


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs * targets).flatten(1).sum(1)


def test_each_record_has_the_inner_product_of_its_input_and_output_gradient() -> None:
    inputs, targets = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain(0.5)).double(), losses, compiled=False).gradients(inputs, targets)
    expected = (inputs * targets).sum((1, 2, 3))
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)
    weights = torch.arange(4, dtype=torch.float64)
    torch.testing.assert_close(found.weighted_sum(weights), {"0.factor": weights @ expected}, rtol=1e-12, atol=0)


def test_views_are_averaged() -> None:
    inputs, targets = torch.randn(4, 2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    found = GhostEngine(nn.Sequential(Gain()).double(), losses, views=2, compiled=False).gradients(inputs, targets)
    expected = (inputs.mean(1) * targets).sum(1)
    torch.testing.assert_close(found.norms(), expected.abs(), rtol=1e-12, atol=0)


def test_a_standardised_weight_has_mean_zero_and_variance_one_over_fan_in_times_the_gain() -> None:
    standardised = Standardised(5)
    torch.nn.init.constant_(standardised.gain, 3.0)
    weight = standardised(4 + 7 * torch.randn(5, 8, 3, 3))
    torch.testing.assert_close(weight.mean((1, 2, 3)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(weight.square().sum((1, 2, 3)), torch.full((5,), 9.0))


def test_a_weight_without_variance_is_zero_and_not_nan() -> None:
    assert not Standardised(4)(torch.ones(4, 3, 3, 3)).any()


def test_the_weight_of_a_convolution_is_computed_from_a_parameter_and_a_gain() -> None:
    names = {name for name, _ in standardised_convolution(3, 4, kernel_size=3).named_parameters()}
    assert names == {"bias", "parametrizations.weight.original", "parametrizations.weight.0.gain"}


def test_every_convolution_of_a_network_is_standardised_from_the_weights_that_it_had() -> None:
    layers = nn.Conv2d(2, 3, 3, bias=False), nn.Conv2d(3, 4, 1)
    network = nn.Sequential(layers[0], nn.Sequential(layers[1]), nn.Linear(4, 2))
    before = [parameter.detach().clone() for parameter in network.parameters()]
    standardise(network)
    names = [name for name, _ in network.named_parameters()]
    assert [name for name in names if name.endswith("gain")] == [
        "0.parametrizations.weight.0.gain",
        "1.0.parametrizations.weight.0.gain",
    ]
    kept = [parameter for name, parameter in network.named_parameters() if not name.endswith("gain")]
    by_size = sorted(before, key=torch.numel), sorted(kept, key=torch.numel)
    assert all(torch.equal(one, other) for one, other in zip(*by_size, strict=True))
    for layer in layers:
        torch.testing.assert_close(layer.weight.square().sum((1, 2, 3)), torch.ones(layer.out_channels))


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4)), *(nn.Tanh() for _ in range(7)))


def trained(given: nn.Module) -> list[str]:
    return [name for name, weight in given.named_parameters() if weight.requires_grad]


def test_what_is_below_a_path_is_no_longer_trained() -> None:
    assert trained(freeze(model(), "0")) == ["2.0.weight", "2.0.bias"]
    assert trained(freeze(model(), "2", "0.bias")) == ["0.weight"]


def test_a_path_is_not_the_beginning_of_a_word() -> None:
    layers = nn.ModuleDict({"conv": nn.Linear(1, 1), "conv2": nn.Linear(1, 1)})
    assert trained(freeze(layers, "conv")) == ["conv2.weight", "conv2.bias"]


def test_a_weight_with_two_names_is_frozen_by_either() -> None:
    layers = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    layers[1].weight = layers[0].weight
    assert trained(freeze(layers, "1.weight")) == ["1.bias"]


def test_the_engine_gives_no_gradient_for_it() -> None:
    torch.manual_seed(0)
    engine = GhostEngine(freeze(model(), "0").double(), squared_distance, compiled=False)
    sums = engine.gradients(*batch(3, 3)).weighted_sum(torch.ones(3, dtype=torch.float64))
    assert set(sums) == {"2.0.weight", "2.0.bias"}


@pytest.mark.parametrize("path", ["1", "5", "weight", "", "0.weight.x"])
def test_a_path_without_parameters_is_refused_with_those_that_have_some(path: str) -> None:
    with pytest.raises(InvalidValue, match=f"path must be that of a layer with parameters, as 0, 2; given: '{path}'"):
        freeze(model(), path)
