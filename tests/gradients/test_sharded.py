"""The engine of sharded weights: it sums what the ghost engine sums, and keeps what it is told to keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import ShardedEngine
from lehr.interfaces import ClipRule
from lehr.privacy.clipping import FlatClip, PerLayerClip


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3))


MASK = torch.tensor([True, False, True, True, True, False])


@pytest.mark.parametrize("clip", [FlatClip(0.1), PerLayerClip(0.1)])
@pytest.mark.parametrize("views", [1, 2])
def test_it_sums_what_the_ghost_engine_sums(clip: ClipRule, views: int) -> None:
    model = perceptron()
    inputs = torch.randn(6, 4) if views == 1 else torch.randn(6, views, 4)
    batch = inputs, torch.arange(6) % 3, MASK
    expected = GhostEngine(model, losses, views=views, compiled=False).private_sum(clip, *batch)
    found = ShardedEngine(model, losses, views=views).private_sum(clip, *batch)
    assert found.sensitivity == expected.sensitivity
    assert list(found.values) == list(expected.values)
    for name, value in expected.values.items():
        torch.testing.assert_close(found.values[name], value)


def test_nobody_sums_to_nothing() -> None:
    nobody = torch.zeros(6, dtype=torch.bool)
    found = ShardedEngine(perceptron(), losses).private_sum(
        FlatClip(1.0), torch.randn(6, 4), torch.arange(6) % 3, nobody
    )
    assert not any(value.any() for value in found.values.values())


def test_of_each_sum_only_what_is_kept_is_held() -> None:
    class Part:
        def squared_norms(self) -> Tensor:
            return torch.ones(2)

        def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
            return torch.arange(4.0)

        def materialised(self) -> Tensor:
            raise NotImplementedError

    everybody = torch.ones(2, dtype=torch.bool)
    kept: Callable[[str, Tensor], Tensor] = lambda name, whole: whole[1:3]  # noqa: E731
    gradients = ContributedGradients({"weight": Part()}, mask_B=everybody, margin=0.0, kept=kept)
    assert gradients.weighted_sum(torch.ones(2))["weight"].tolist() == [1.0, 2.0]
    assert gradients.norms().tolist() == [1.0, 1.0]


def test_a_model_that_mixes_records_is_refused_while_its_weights_are_whole() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.layer(x - x.mean(0))
            return outputs

    with pytest.raises(NotPrivate):
        ShardedEngine(Mixing(), losses).private_sum(FlatClip(1.0), torch.randn(6, 4), torch.arange(6) % 3)


def test_a_parameter_that_is_used_behind_its_layers_back_is_refused() -> None:
    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.layer(x) + x @ self.layer.weight.T
            return outputs

    with pytest.raises(NotPrivate, match="outside the forward pass"):
        ShardedEngine(Behind(), losses).private_sum(FlatClip(1.0), torch.randn(6, 4), torch.arange(6) % 3)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


class Scaled(nn.Module):
    """A layer with one number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


@pytest.mark.parametrize(
    "model, why",
    [(tied(), "shared weights"), (Scaled(), "single numbers"), (weight_norm(nn.Linear(3, 3)), "computed weights")],
)
def test_weights_without_rows_of_their_own_are_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        ShardedEngine(model, losses)


def test_inputs_of_a_kind_that_was_not_tried_are_refused_once_weights_are_spread_out() -> None:
    engine = ShardedEngine(perceptron(), losses)
    batch = torch.randn(6, 4), torch.arange(6) % 3
    engine.private_sum(FlatClip(1.0), *batch)
    engine.let_go(lambda name, whole: whole)
    with pytest.raises(InvalidValue, match="that was tried"):
        engine.private_sum(FlatClip(1.0), batch[0].unsqueeze(1), batch[1])
