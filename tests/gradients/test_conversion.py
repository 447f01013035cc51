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
    assert converted[1].training is training
    assert {parameter.dtype for parameter in converted.parameters()} == {torch.float64}


def test_frozen_statistics_give_what_the_model_gives_in_evaluation() -> None:
    model = network().double()
    images = torch.randn(5, 3, 6, 6).double()
    converted = frozen_statistics(model).train()
    assert torch.allclose(converted(images), model.eval()(images), rtol=1e-12, atol=1e-12)


def test_frozen_statistics_do_not_follow_the_records() -> None:
    converted = frozen_statistics(network()).train()
    before = copy.deepcopy(dict(converted.named_buffers()))
    converted(torch.randn(5, 3, 6, 6) + 100)
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


def test_a_single_channel_is_refused_with_the_other_way_out() -> None:
    with pytest.raises(NotPrivate, match=r"^0 \(BatchNorm2d\).*single channel.*frozen_statistics"):
        group_norm_instead(nn.Sequential(nn.BatchNorm2d(1)))


def test_statistics_that_do_not_exist_cannot_be_frozen() -> None:
    with pytest.raises(NotPrivate, match=r"^0 \(BatchNorm2d\).*no running statistics.*group_norm_instead"):
        frozen_statistics(nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)))


@pytest.mark.parametrize("convert", [group_norm_instead, frozen_statistics])
def test_a_lazy_layer_is_refused_until_it_has_a_shape(convert: Any) -> None:
    with pytest.raises(NotPrivate, match=r"^0 \(LazyBatchNorm2d\).*no shape yet"):
        convert(nn.Sequential(nn.LazyBatchNorm2d()))


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidValue, match="num_groups"):
        group_norm_instead(nn.BatchNorm2d(4), num_groups=0)
    with pytest.raises(InvalidValue, match="min_channels_per_group"):
        group_norm_instead(nn.BatchNorm2d(4), min_channels_per_group=1)


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 5, 5), (2, 3, 4, 4, 4)])
def test_it_normalises_channels_with_what_it_was_given(shape: tuple[int, ...]) -> None:
    values = torch.randn(*shape).double()
    mean, std = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([0.5, 1.0, 2.0]).double()
    weight, bias = torch.tensor([1.0, -1.0, 2.0]).double(), torch.tensor([0.0, 1.0, 2.0]).double()
    outputs = FixedStatistics(mean, std, weight=weight, bias=bias)(values)
    for channel in range(3):
        expected = (values[:, channel] - mean[channel]) / std[channel] * weight[channel] + bias[channel]
        assert torch.allclose(outputs[:, channel], expected)


def test_statistics_are_saved_and_not_trained() -> None:
    layer = FixedStatistics(torch.zeros(3), torch.ones(3), weight=torch.ones(3), bias=nn.Parameter(torch.ones(3)))
    assert set(layer.state_dict()) == {"mean", "std", "weight", "bias"}
    assert [(name, parameter.requires_grad) for name, parameter in layer.named_parameters()] == [
        ("weight", False),
        ("bias", True),
    ]


def test_no_feature_is_erased_where_images_have_shrunk_to_one_pixel() -> None:
    converted = group_norm_instead(nn.Sequential(nn.BatchNorm2d(32)))
    outputs = converted(torch.randn(2, 32, 1, 1))
    assert bool((outputs != 0).all())
