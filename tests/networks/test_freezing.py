"""Parts of a model that are not trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.networks.freezing import freeze
from tests.gradients.oracle import batch, squared_distance


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4)), *(nn.Tanh() for _ in range(7)))


def trained(given: nn.Module) -> list[str]:
    return [name for name, weight in given.named_parameters() if weight.requires_grad]


def test_what_is_below_a_path_is_no_longer_trained() -> None:
    assert trained(freeze(model(), "0")) == ["2.0.weight", "2.0.bias"]
    assert trained(freeze(model(), "2", "0.bias")) == ["0.weight"]


def test_it_is_the_same_model() -> None:
    given = model()
    assert freeze(given, "0") is given


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


def test_freezing_nothing_is_refused() -> None:
    with pytest.raises(InvalidValue, match="paths must be one or more"):
        freeze(model())
