from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from lehr.errors import NotPrivate
from lehr.gradients.refusals import refuse_what_cannot_be_private


class OwnStatistics(nn.Module):
    """A normalisation that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))

    def forward(self, values: Tensor) -> Tensor:
        return values


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


REFUSED = {
    "BatchNorm1d": nn.BatchNorm1d(3),
    "BatchNorm2d": nn.BatchNorm2d(3),
    "BatchNorm3d": nn.BatchNorm3d(3),
    "SyncBatchNorm": nn.SyncBatchNorm(3),
    "BatchNorm without gain": nn.BatchNorm2d(3, affine=False),
    "BatchNorm with frozen gain": frozen(nn.BatchNorm2d(3)),
    "BatchNorm without statistics, evaluated": nn.BatchNorm2d(3, track_running_stats=False).eval(),
    "BatchNorm with fixed momentum": nn.BatchNorm2d(3, momentum=0.0),
    "InstanceNorm with statistics": nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
    "InstanceNorm with statistics, nothing trained": nn.InstanceNorm2d(3, track_running_stats=True),
    "statistics of another class": OwnStatistics(),
    "lazy": nn.LazyLinear(3),
    "lazy BatchNorm": nn.LazyBatchNorm2d().eval(),
    "Embedding with max_norm": nn.Embedding(4, 3, max_norm=1.0),
    "frozen Embedding with max_norm": frozen(nn.Embedding(4, 3, max_norm=1.0)),
    "EmbeddingBag with max_norm": nn.EmbeddingBag(4, 3, max_norm=1.0),
    "Embedding scaled by frequency": nn.Embedding(4, 3, scale_grad_by_freq=True),
    "spectral norm in a hook": spectral_norm(nn.Linear(3, 3)),
    "pruning in a hook": prune.identity(nn.Linear(3, 3), "weight"),  # type: ignore[no-untyped-call]
}
ACCEPTED = {
    "BatchNorm1d, evaluated": nn.BatchNorm1d(3).eval(),
    "BatchNorm2d, evaluated": nn.BatchNorm2d(3).eval(),
    "SyncBatchNorm, evaluated": nn.SyncBatchNorm(3).eval(),
    "InstanceNorm": nn.InstanceNorm2d(3, affine=True),
    "InstanceNorm with statistics, evaluated": nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(),
    "statistics of another class, evaluated": OwnStatistics().eval(),
    "GroupNorm": nn.GroupNorm(1, 3),
    "Embedding": nn.Embedding(4, 3, padding_idx=0),
    "Dropout": nn.Dropout(),
    "LSTM": nn.LSTM(3, 3),
    "spectral norm as a parametrisation": parametrizations.spectral_norm(nn.Linear(3, 3)),
    "a hook of the user's": nn.Linear(3, 3),
}
ACCEPTED["a hook of the user's"].register_forward_pre_hook(lambda layer, args: None)


@pytest.mark.parametrize("layer", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_private_is_refused_by_its_path_with_a_way_out(layer: nn.Module) -> None:
    model = nn.ModuleDict({"stem": nn.Sequential(nn.Identity(), layer), "head": nn.BatchNorm1d(2)})
    with pytest.raises(NotPrivate) as refusal:
        refuse_what_cannot_be_private(model)
    assert refusal.value.layer == f"stem.1 ({type(layer).__name__})"
    assert refusal.value.reason
    assert refusal.value.instead


@pytest.mark.parametrize("layer", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_what_can_be_private_is_accepted(layer: nn.Module) -> None:
    refuse_what_cannot_be_private(nn.Sequential(nn.Identity(), layer))


def test_the_old_weight_norm_is_refused_and_the_new_one_is_not() -> None:
    with pytest.warns(FutureWarning, match="weight_norm"):
        old = nn.utils.weight_norm(nn.Linear(3, 3))
    with pytest.raises(NotPrivate, match=r"parametrizations"):
        refuse_what_cannot_be_private(old)
    refuse_what_cannot_be_private(parametrizations.weight_norm(nn.Linear(3, 3)))


def test_a_lazy_layer_that_has_been_run_is_accepted() -> None:
    model = nn.LazyLinear(3)
    model(torch.zeros(1, 2))
    refuse_what_cannot_be_private(model)
