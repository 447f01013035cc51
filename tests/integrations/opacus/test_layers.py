"""Recurrent layers, attention, ``SequenceBias``, and ``ModuleValidator``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lehr.errors import LehrError
from lehr.gradients.hooked import HookedEngine
from lehr.integrations.opacus import ModuleValidator, validators
from lehr.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN
from lehr.integrations.opacus.validators import (
    IllegalModuleConfigurationError,
    NotYetSupportedModuleError,
    ShouldReplaceModuleError,
    UnsupportedModuleError,
    register_module_fixer,
    register_module_validator,
)
from tests.integrations.opacus.loops import assert_same_gradients, differentiate, gradients_alone
from tests.integrations.refusals import invalid, not_private

TARGETS = torch.tensor([0, 1, 2, 0, 1])


def assert_right(model: nn.Module, *inputs: Tensor) -> None:
    """The gradients of a hooked model are those of each record alone."""

    def loss(own: slice) -> Tensor:
        return functional.cross_entropy(model(*(part[own] for part in inputs)), TARGETS[own])

    expected = gradients_alone(model, loss, count=len(TARGETS))
    with HookedEngine(model) as engine:
        differentiate(loss(slice(None)))
        assert_same_gradients(engine.gradients(), expected)


every_layer = pytest.mark.parametrize("kind", [DPRNN, DPGRU, DPLSTM])


class Sentences(nn.Module):
    """Classifies sentences, with ``lengths`` as packed sequences."""

    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 5)
        self.layer = kind(5, 4, batch_first=True, **options)
        self.out = nn.Linear(8 if options.get("bidirectional") else 4, 3)

    def forward(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        inputs = self.words(words)
        if lengths is None:
            hidden, last = self.layer(inputs)
        else:
            packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
            hidden, last = self.layer(packed)
            hidden, _ = pad_packed_sequence(hidden, batch_first=True, total_length=words.shape[1])
        states = last if isinstance(last, tuple) else (last,)
        own: Tensor = self.out(hidden.mean(1)) + sum(state.sum((0, 2)) for state in states).unsqueeze(1)
        return own


WORDS = torch.randint(0, 10, (5, 6), generator=torch.Generator().manual_seed(1))


@every_layer
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"bias": False, "num_layers": 2}], ids=str)
def test_gradients_of_recurrent_layers_are_right(kind: Any, options: dict[str, Any]) -> None:
    assert_right(Sentences(kind, **options).double(), WORDS)


@every_layer
def test_gradients_are_right_for_sequences_of_different_length(kind: Any) -> None:
    assert_right(Sentences(kind, num_layers=2, bidirectional=True).double(), WORDS, torch.tensor([3, 6, 1, 5, 2]))


class Called(nn.Module):
    def __init__(self, layer: nn.Module, states: Any) -> None:
        super().__init__()
        self.layer, self.states = layer, states

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs, self.states)


@every_layer
def test_outputs_in_training_are_those_of_torch(kind: Any) -> None:
    layer = kind(5, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    inputs, num_states = torch.randn(3, 6, 5, dtype=torch.float64), 2 if kind is DPLSTM else 1
    states = tuple(torch.randn(4, 3, 4, dtype=torch.float64) for _ in range(num_states))
    given = states if kind is DPLSTM else states[0]
    with torch.no_grad():
        expected = layer(inputs, given)
    with HookedEngine(Called(layer, given)):
        torch.testing.assert_close(layer(inputs, given), expected)


def test_an_empty_batch_adds_nothing() -> None:
    model = Sentences(DPLSTM).double()
    with HookedEngine(model) as engine:
        differentiate(functional.cross_entropy(model(WORDS[:0]), TARGETS[:0]))
        found = engine.gradients()
    assert not any(bool(value.any()) for value in found.weighted_sum(torch.ones(0, dtype=torch.float64)).values())


def test_projections_and_unbatched_inputs_are_refused() -> None:
    with not_private("DPLSTM"):
        HookedEngine(nn.Sequential(DPLSTM(5, 4, proj_size=2)))
    layer = DPLSTM(5, 4)
    with HookedEngine(nn.Sequential(layer)), invalid("the input of DPLSTM"):
        layer(torch.ones(6, 5))


# ModuleValidator.


def images(channels: int = 8) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, channels, 3), nn.BatchNorm2d(channels), nn.Conv2d(channels, 4, 3))


@pytest.mark.parametrize(
    "layer, error",
    [
        (nn.BatchNorm1d(4), ShouldReplaceModuleError),
        (nn.LSTM(3, 3), ShouldReplaceModuleError),
        (nn.InstanceNorm1d(4, track_running_stats=True), IllegalModuleConfigurationError),
        (nn.Embedding(4, 2, max_norm=1.0), NotYetSupportedModuleError),
    ],
)
def test_unsupported_layers_are_named_once(layer: nn.Module, error: type[Exception]) -> None:
    errors = ModuleValidator.validate(nn.Sequential(nn.Linear(3, 3), nn.Sequential(layer)))
    assert [type(found) for found in errors] == [error]
    assert f"1.0 ({type(layer).__name__})" in str(errors[0])
    with pytest.raises(UnsupportedModuleError) as caught:
        ModuleValidator.validate(nn.Sequential(layer), strict=True)
    assert isinstance(caught.value, LehrError)
    assert isinstance(caught.value, ValueError)
    assert issubclass(validators.UnsupportableModuleError, UnsupportedModuleError)


def test_attention_and_frozen_batch_norm_are_valid_and_eval_mode_is_not() -> None:
    assert ModuleValidator.is_valid(nn.TransformerEncoderLayer(4, 2))
    frozen = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    frozen[1].eval()
    assert ModuleValidator.is_valid(frozen)
    assert list(map(type, ModuleValidator.validate(nn.Linear(2, 2).eval()))) == [IllegalModuleConfigurationError]


def test_batch_norm_is_replaced_in_a_copy() -> None:
    model = images(channels=32)
    fixed: Any = ModuleValidator.fix(model)
    assert isinstance(model[1], nn.BatchNorm2d)  # type: ignore[index]
    assert fixed[1].num_channels // fixed[1].num_groups >= 4
    assert bool(fixed[1](torch.randn(2, 32, 1, 1)).abs().gt(1e-3).any())  # groups of one number would be all zeros
    limited: Any = ModuleValidator.fix(model, num_groups=2)
    assert limited[1].num_groups == 2
    by_instance: Any = ModuleValidator.fix(model, replace_bn_with_in=True)
    assert isinstance(by_instance[1], nn.InstanceNorm2d)
    with invalid("num_groups"):
        ModuleValidator.fix(model, num_groups=2, replace_bn_with_in=True)
    without: Any = ModuleValidator.fix_and_validate(nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)))
    assert without[0].running_mean is None


@pytest.mark.parametrize("kind, replacement", [(nn.LSTM, DPLSTM), (nn.GRU, DPGRU), (nn.RNN, DPRNN)])
def test_recurrent_layers_keep_their_weights(kind: Any, replacement: type[nn.Module]) -> None:
    model = nn.Sequential(kind(3, 4, num_layers=2, bidirectional=True, batch_first=True))
    fixed: Any = ModuleValidator.fix_and_validate(model)
    assert type(fixed[0]) is replacement
    inputs = torch.randn(2, 5, 3)
    with torch.no_grad():
        assert torch.equal(fixed[0](inputs)[0], model[0](inputs)[0])


class Odd(nn.Module):
    pass


def test_checks_and_replacements_can_be_registered() -> None:
    register_module_validator(Odd)(lambda layer: [NotYetSupportedModuleError("odd")])
    register_module_fixer([Odd])(lambda layer: nn.Identity())
    model = nn.Sequential(Odd(), nn.Linear(2, 2))
    assert [str(error) for error in ModuleValidator.validate(model)] == ["odd"]
    assert isinstance(ModuleValidator.fix_and_validate(model)[0], nn.Identity)  # type: ignore[index]
