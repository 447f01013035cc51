"""Recurrent layers, attention and ``SequenceBias``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.hooked import HookedEngine
from lehr.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention, SequenceBias
from tests.integrations.opacus.loops import differentiate


class Attends(nn.Module):
    def __init__(self, *, batch_first: bool, add_bias_kv: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.batch_first = batch_first
        self.attention = DPMultiheadAttention(4, 2, batch_first=batch_first, add_bias_kv=add_bias_kv)
        self.bias = SequenceBias(4, batch_first=batch_first)
        self.out = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        sequence = inputs if self.batch_first else inputs.transpose(0, 1)
        attended, _ = self.attention(sequence, sequence, sequence)
        longer = self.bias(attended)
        means: Tensor = self.out(longer.square().mean(1 if self.batch_first else 0))
        return means


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("add_bias_kv", [True, False])
def test_gradients_are_those_of_each_record_alone(batch_first: bool, add_bias_kv: bool) -> None:
    model = Attends(batch_first=batch_first, add_bias_kv=add_bias_kv).double()
    inputs, targets = torch.randn(5, 6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    names = list(dict(model.named_parameters()))
    expected = []
    for record in range(5):
        loss = functional.cross_entropy(model(inputs[record : record + 1]), targets[record : record + 1])
        expected.append(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))]))
    with HookedEngine(model) as engine:
        differentiate(functional.cross_entropy(model(inputs), targets))
        found = engine.gradients()
    assert torch.allclose(found.norms(), torch.stack(expected).norm(dim=1), rtol=1e-6)
    sums = found.weighted_sum(torch.ones(5, dtype=torch.float64))
    assert torch.allclose(torch.cat([sums[name].flatten() for name in names]), torch.stack(expected).sum(0), atol=1e-10)


def test_the_bias_stands_at_the_end() -> None:
    layer = SequenceBias(4, batch_first=True)
    longer = layer(torch.zeros(2, 3, 4))
    assert longer.shape == (2, 4, 4)
    assert torch.equal(longer[1, 3], layer.bias)


PAIRS = {DPRNN: nn.RNN, DPGRU: nn.GRU, DPLSTM: nn.LSTM}
SETUPS: list[dict[str, Any]] = [{"num_layers": 2, "bidirectional": True}, {"bias": False}]
every_layer = pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)


class Sentences(nn.Module):
    """Classifies sentences; where lengths are given, each by its own length."""

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


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 10, (5, 6), generator=generator), torch.randint(0, 3, (5,), generator=generator)


def one_by_one(model: nn.Module, words: Tensor, targets: Tensor, *lengths: Tensor) -> list[dict[str, Tensor]]:
    found = []
    for record in range(len(words)):
        own = slice(record, record + 1)
        loss = functional.cross_entropy(model(words[own], *(part[own] for part in lengths)), targets[own])
        grads = torch.autograd.grad(loss, list(model.parameters()))
        found.append(dict(zip(dict(model.named_parameters()), grads, strict=True)))
    return found


def assert_right(model: nn.Module, *lengths: Tensor) -> None:
    words, targets = batch()
    expected = one_by_one(model, words, targets, *lengths)
    with HookedEngine(model) as engine:
        differentiate(functional.cross_entropy(model(words, *lengths), targets))
        found = engine.gradients()
    norms = [torch.sqrt(torch.stack([grad.square().sum() for grad in grads.values()]).sum()) for grads in expected]
    assert torch.allclose(found.norms(), torch.stack(norms), rtol=1e-9)
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    for name, value in found.weighted_sum(weights).items():
        wanted = sum(weight * grads[name] for weight, grads in zip(weights, expected, strict=True))
        assert torch.allclose(value, wanted, atol=1e-12)


@every_layer
@pytest.mark.parametrize("options", SETUPS, ids=str)
def test_recurrent_gradients_are_those_of_each_record_alone(kind: Any, options: dict[str, Any]) -> None:
    assert_right(Sentences(kind, **options).double())


@every_layer
def test_gradients_are_right_for_sequences_of_different_length(kind: Any) -> None:
    model = Sentences(kind, num_layers=2, bidirectional=True).double()
    assert_right(model, torch.tensor([3, 6, 1, 5, 2]))


@every_layer
def test_trained_it_computes_what_it_does_evaluated(kind: Any) -> None:
    layer = kind(5, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    inputs, num_states = torch.randn(3, 6, 5, dtype=torch.float64), 2 if kind is DPLSTM else 1
    states = tuple(torch.randn(4, 3, 4, dtype=torch.float64) for _ in range(num_states))
    given = states if kind is DPLSTM else states[0]
    with torch.no_grad():
        expected, last = layer(inputs, given)
    with HookedEngine(_Called(layer, given)) as engine:
        assert engine is not None
        found, found_last = layer(inputs, given)
    assert torch.allclose(found, expected)
    pairs = zip(found_last, last, strict=True) if kind is DPLSTM else [(found_last, last)]
    assert all(torch.allclose(one, other) for one, other in pairs)


class _Called(nn.Module):
    def __init__(self, layer: nn.Module, states: Any) -> None:
        super().__init__()
        self.layer, self.states = layer, states

    def forward(self, inputs: Tensor) -> Any:
        return self.layer(inputs, self.states)


def test_an_empty_batch_adds_nothing() -> None:
    model = Sentences(DPLSTM).double()
    words, targets = batch()
    with HookedEngine(model) as engine:
        differentiate(functional.cross_entropy(model(words[:0]), targets[:0]))
        found = engine.gradients()
    assert not any(bool(value.any()) for value in found.weighted_sum(torch.ones(0, dtype=torch.float64)).values())


def test_what_has_no_rule_is_refused() -> None:
    with pytest.raises(NotPrivate, match="proj_size"):
        HookedEngine(nn.Sequential(DPLSTM(5, 4, proj_size=2)))
    layer = DPLSTM(5, 4)
    with HookedEngine(nn.Sequential(layer)), pytest.raises(InvalidValue, match="three axes"):
        layer(torch.ones(6, 5))
