"""Both ways to replace BatchNorm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.conversion import FixedStatistics, frozen_statistics, group_norm_instead, groups_for
from lehr.gradients.refusals import refuse_what_cannot_be_private
from tests.gradients.small_models import untouched


def network() -> Any:
    """With running statistics that differ from those of a new layer."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Sequential(nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4))
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    with torch.no_grad():
        model(torch.randn(16, 3, 6, 6))
    return model


@pytest.mark.parametrize("convert", [group_norm_instead, frozen_statistics])
def test_the_given_model_is_untouched_and_the_new_one_can_be_private(convert: Any) -> None:
    model = network()
    before = untouched(model)
    converted = convert(model)
    refuse_what_cannot_be_private(converted)
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.add_(1)
    assert untouched(model) == before


@pytest.mark.parametrize("convert", [group_norm_instead, frozen_statistics])
@pytest.mark.parametrize("training", [True, False])
def test_gain_shift_type_and_mode_are_taken_over(convert: Any, training: bool) -> None:
    model = network().double().train(training)
    model[1].weight.requires_grad_(False)
    converted = convert(model)
    assert torch.equal(converted[1].weight, model[1].weight)
    assert torch.equal(converted[3][1].bias, model[3][1].bias)
    assert not converted[1].weight.requires_grad
    assert converted[1].bias.requires_grad
    assert converted[1].training is (training and convert is group_norm_instead)
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.float64}


def test_frozen_statistics_give_what_the_model_gives_in_evaluation_and_do_not_follow_the_records() -> None:
    model = network().double()
    images = torch.randn(5, 3, 6, 6).double()
    converted = frozen_statistics(model).train()
    before = copy.deepcopy(dict(converted.named_buffers()))
    assert torch.equal(converted(images + 100), model.eval()(images + 100))
    assert all(torch.equal(value, before[name]) for name, value in converted.named_buffers())


@given(num_channels=st.integers(2, 600), num_groups=st.integers(1, 64), min_channels=st.integers(2, 32))
def test_groups_are_even_and_never_too_small(num_channels: int, num_groups: int, min_channels: int) -> None:
    groups = groups_for(num_channels, num_groups=num_groups, min_channels_per_group=min_channels)
    assert 1 <= groups <= num_groups
    assert num_channels % groups == 0
    assert num_channels // groups >= min(min_channels, num_channels)


def test_as_many_groups_as_the_limits_allow() -> None:
    assert groups_for(128, num_groups=32, min_channels_per_group=4) == 32
    assert groups_for(64, num_groups=32, min_channels_per_group=4) == 16
    assert groups_for(48, num_groups=10, min_channels_per_group=4) == 8
    assert groups_for(7, num_groups=32, min_channels_per_group=4) == 1


def test_a_layer_in_several_places_stays_one_layer() -> None:
    shared = nn.BatchNorm1d(8)
    converted = group_norm_instead(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared), "c": shared}))
    assert isinstance(converted, nn.ModuleDict)
    assert isinstance(converted["a"], nn.GroupNorm)
    assert converted["a"] is converted["c"]
    assert converted["a"] is converted["b"][0]  # type: ignore[index]


def test_a_model_that_is_itself_a_batch_norm_is_converted() -> None:
    assert isinstance(group_norm_instead(nn.BatchNorm3d(8)), nn.GroupNorm)
    assert isinstance(frozen_statistics(nn.SyncBatchNorm(8)), FixedStatistics)


def test_without_an_affine_part_there_is_still_none() -> None:
    layer = nn.BatchNorm2d(8, affine=False)
    assert not list(group_norm_instead(layer).parameters())
    assert not list(frozen_statistics(layer).parameters())


@pytest.mark.parametrize(
    "convert, layer",
    [
        (group_norm_instead, nn.BatchNorm2d(1)),
        (frozen_statistics, nn.BatchNorm2d(4, track_running_stats=False)),
        (group_norm_instead, nn.LazyBatchNorm2d()),
        (frozen_statistics, nn.LazyBatchNorm2d()),
    ],
)
def test_one_channel_missing_statistics_and_lazy_layers_are_refused(convert: Any, layer: nn.Module) -> None:
    with pytest.raises(NotPrivate) as refusal:
        convert(nn.Sequential(layer))
    assert refusal.value.layer == f"0 ({type(layer).__name__})"


@pytest.mark.parametrize("limit", [{"num_groups": 0}, {"min_channels_per_group": 1}])
def test_limits_out_of_range_are_refused(limit: dict[str, int]) -> None:
    with pytest.raises(InvalidValue) as refusal:
        group_norm_instead(nn.BatchNorm2d(4), **limit)
    assert [refusal.value.name] == list(limit)


def test_no_feature_is_erased_where_images_have_shrunk_to_one_pixel() -> None:
    converted = group_norm_instead(nn.Sequential(nn.BatchNorm2d(32)))
    outputs = converted(torch.randn(2, 32, 1, 1))
    assert bool((outputs != 0).all())
