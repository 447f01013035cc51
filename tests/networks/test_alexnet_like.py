"""The network with local response norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.gradients.materialised import MaterialisedEngine
from lehr.networks.alexnet_like import alexnet_like
from lehr.networks.response_norm import ResponseNorm
from tests.gradients.oracle import assert_agrees, assert_close, batch, loop, squared_distance


def small(*, frozen_convolutions: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    return alexnet_like(image_side=4, frozen_convolutions=frozen_convolutions).double()


def num_parameters(network: nn.Module, *, trained: bool = False) -> int:
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad or not trained)


def test_it_has_the_sizes_of_its_sources() -> None:
    convolutions = (3 * 25 + 1) * 64 + (64 * 25 + 1) * 64
    linear = (64 * 8 * 8 + 1) * 384 + (384 + 1) * 192 + (192 + 1) * 10
    assert num_parameters(alexnet_like()) == convolutions + linear == 1_756_426
    assert num_parameters(alexnet_like(frozen_convolutions=True), trained=True) == linear == 1_649_098
    assert alexnet_like()(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_the_first_norm_stands_behind_its_pool_and_the_second_before() -> None:
    order = [type(layer) for layer in alexnet_like().get_submodule("convolutions").children()]
    first = [nn.Conv2d, nn.ReLU, nn.MaxPool2d, ResponseNorm]
    assert order == [*first, nn.Conv2d, nn.ReLU, ResponseNorm, nn.MaxPool2d]


def test_the_norm_looks_at_four_channels_on_either_side_of_one_pixel() -> None:
    """Written out as TensorFlow has it: x / (1 + 0.001/9 · sum of squares over the window)^0.75."""
    (norm, *_) = (layer for layer in small().modules() if isinstance(layer, ResponseNorm))
    values = 30 * torch.randn(2, 64, 3, 3, dtype=torch.float64)
    windows = [values[:, max(0, channel - 4) : channel + 5].square().sum(1) for channel in range(64)]
    expected = values / (1 + 0.001 / 9 * torch.stack(windows, dim=1)) ** 0.75
    torch.testing.assert_close(norm(values), expected)
    assert not torch.allclose(norm(values), values, rtol=0.1)


def test_no_record_changes_the_scores_of_another() -> None:
    images = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    others = torch.cat([images[:1], 100 * torch.randn(2, 3, 4, 4, dtype=torch.float64)])
    network = small()
    torch.testing.assert_close(network(images)[0], network(others)[0], rtol=1e-12, atol=0)


@pytest.mark.parametrize("frozen", [False, True])
def test_both_engines_have_the_gradients_of_a_loop(frozen: bool) -> None:
    network, (images, targets) = small(frozen_convolutions=frozen), batch(3, 3, 4, 4)
    assert_agrees(network, images, targets)
    expected = loop(network, images, targets)
    assert ("convolutions.0.weight" in expected) is not frozen
    found = MaterialisedEngine(network, squared_distance).gradients(images, targets)
    norms = torch.stack([grads.flatten(1).norm(dim=1) for grads in expected.values()]).norm(dim=0)
    assert_close(found.norms(), norms, tolerance=1e-10)


def test_convolutions_of_one_network_can_be_loaded_into_another_with_other_classes() -> None:
    torch.manual_seed(0)
    elsewhere, here = alexnet_like(num_classes=100), alexnet_like(frozen_convolutions=True)
    here.get_submodule("convolutions").load_state_dict(elsewhere.get_submodule("convolutions").state_dict())
    images = torch.rand(1, 3, 32, 32)
    assert torch.equal(here.get_submodule("convolutions")(images), elsewhere.get_submodule("convolutions")(images))


@pytest.mark.parametrize("side", [3, 0, 32.0, True])
def test_an_image_that_cannot_be_halved_twice_is_refused(side: object) -> None:
    with pytest.raises(InvalidValue, match="image_side must be a whole number >= 4"):
        alexnet_like(image_side=side)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["no", "false", 0, None])
def test_frozen_is_said_with_true_or_false(word: object) -> None:
    with pytest.raises(InvalidValue, match="frozen_convolutions must be true or false"):
        alexnet_like(frozen_convolutions=word)  # type: ignore[arg-type]
