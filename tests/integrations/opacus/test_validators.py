"""``ModuleValidator`` finds what cannot be private and replaces it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue, LehrError
from lehr.integrations.opacus import DPGRU, DPLSTM, DPRNN, ModuleValidator, validators
from lehr.integrations.opacus.validators import (
    IllegalModuleConfigurationError,
    NotYetSupportedModuleError,
    ShouldReplaceModuleError,
    UnsupportedModuleError,
    register_module_fixer,
    register_module_validator,
)


def test_every_error_is_caught_as_lehrs_as_opacuss_and_as_a_value_error() -> None:
    kinds = "UnsupportableModule NotYetSupportedModule ShouldReplaceModule IllegalModuleConfiguration"
    for kind in kinds.split():
        bases = getattr(validators, f"{kind}Error").__mro__
        assert {UnsupportedModuleError, LehrError, ValueError} <= set(bases)


def images(channels: int = 8) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.Conv2d(channels, 4, 3))


@pytest.mark.parametrize(
    "layer, error",
    [
        (nn.BatchNorm1d(4), ShouldReplaceModuleError),
        (nn.LSTM(3, 3), ShouldReplaceModuleError),
        (nn.GRU(3, 3), ShouldReplaceModuleError),
        (nn.RNN(3, 3), ShouldReplaceModuleError),
        (nn.InstanceNorm1d(4, track_running_stats=True), IllegalModuleConfigurationError),
        (nn.Embedding(4, 2, max_norm=1.0), NotYetSupportedModuleError),
    ],
)
def test_what_cannot_be_private_is_named_once(layer: nn.Module, error: type[Exception]) -> None:
    errors = ModuleValidator.validate(nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer)))
    assert [type(found) for found in errors] == [error]
    assert f"1.0 ({type(layer).__name__})" in str(errors[0])
    with pytest.raises(UnsupportedModuleError):
        ModuleValidator.validate(nn.Sequential(layer), strict=True)


def test_attention_and_frozen_batch_norm_need_no_replacement() -> None:
    assert ModuleValidator.is_valid(nn.TransformerEncoderLayer(4, 2))
    frozen = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    frozen[1].eval()
    assert ModuleValidator.is_valid(frozen)


def test_a_model_must_be_in_training_mode() -> None:
    assert [type(found) for found in ModuleValidator.validate(nn.Linear(2, 2).eval())] == [
        IllegalModuleConfigurationError
    ]


def test_fixing_leaves_the_given_model_alone_and_no_group_normalises_to_nothing() -> None:
    model = images(channels=32)
    fixed: Any = ModuleValidator.fix(model)
    assert isinstance(model[1], nn.BatchNorm2d)  # type: ignore[index]
    assert fixed[1].num_channels // fixed[1].num_groups >= 4
    features = torch.randn(2, 32, 1, 1)
    assert bool(fixed[1](features).abs().gt(1e-3).any())  # 32 groups of one number each would be all zeros


def test_groups_are_limited_and_instance_norm_can_be_asked_for() -> None:
    fixed: Any = ModuleValidator.fix(images(channels=32), num_groups=2)
    assert fixed[1].num_groups == 2
    other: Any = ModuleValidator.fix(images(), replace_bn_with_in=True)
    assert isinstance(other[1], nn.InstanceNorm2d)
    with pytest.raises(InvalidValue, match="num_groups"):
        ModuleValidator.fix(images(), num_groups=2, replace_bn_with_in=True)
    with pytest.raises(TypeError, match="groups"):
        ModuleValidator.fix(images(), groups=2)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind, replacement", [(nn.LSTM, DPLSTM), (nn.GRU, DPGRU), (nn.RNN, DPRNN)])
def test_recurrent_layers_keep_their_weights(kind: Any, replacement: type[nn.Module]) -> None:
    model = nn.Sequential(kind(3, 4, num_layers=2, bidirectional=True, batch_first=True))
    fixed: Any = ModuleValidator.fix_and_validate(model)
    assert type(fixed[0]) is replacement
    inputs = torch.randn(2, 5, 3)
    with torch.no_grad():
        assert torch.equal(fixed[0](inputs)[0], model[0](inputs)[0])


def test_statistics_are_forgotten() -> None:
    fixed: Any = ModuleValidator.fix_and_validate(nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)))
    assert fixed[0].running_mean is None


class Odd(nn.Module):
    pass


def test_layers_of_the_users_own_can_be_registered() -> None:
    @register_module_validator(Odd)
    def validate(layer: Odd) -> list[UnsupportedModuleError]:
        return [NotYetSupportedModuleError("odd")]

    @register_module_fixer([Odd])
    def fix(layer: Odd) -> nn.Module:
        return nn.Identity()

    model = nn.Sequential(Odd(), nn.Linear(2, 2))
    assert [str(error) for error in ModuleValidator.validate(model)] == ["odd"]
    assert isinstance(ModuleValidator.fix_and_validate(model)[0], nn.Identity)  # type: ignore[index]
