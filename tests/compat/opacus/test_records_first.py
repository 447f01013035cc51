from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, TensorDataset

from lehr.compat.opacus import DPLSTM, GradSampleHooks, GradSampleModule, PrivacyEngine
from lehr.errors import NotPrivate
from tests.compat.opacus.loops import differentiate, sgd

WORDS_TB = torch.randint(0, 10, (6, 5), generator=torch.Generator().manual_seed(0))
TARGETS_B = torch.tensor([0, 1, 2, 0, 1])


class Sentences(nn.Module):
    """Every kind of layer that is given sequences, and one that is given one row for each record."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.lstm = DPLSTM(4, 4)
        self.every = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        values = self.norm(self.words(words))
        values = values + self.attention(values, values, values, need_weights=False)[0]
        values = self.every(self.lstm(values)[0])
        scores: Tensor = self.last(values[-1])
        return scores


class Behind(Sentences):
    """Something is done along the second axis, behind the last layer."""

    def __init__(self, last: Any) -> None:
        super().__init__()
        self.then = last

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.then(self.every(self.words(words)))
        return found


def test_gradients_are_those_of_each_record_alone() -> None:
    model = Sentences().double()
    expected = []
    for record in range(5):
        own = slice(record, record + 1)
        loss = functional.cross_entropy(model(WORDS_TB[:, own]), TARGETS_B[own])
        expected.append(torch.autograd.grad(loss, list(model.parameters())))
    weights = torch.arange(1.0, 6.0, dtype=torch.float64)
    for wrap in (GradSampleModule, GradSampleHooks):
        hooks: Any = wrap(model, batch_first=False)
        differentiate(functional.cross_entropy(model(WORDS_TB), TARGETS_B))
        found = getattr(hooks, "hooks", hooks).listener.gradients().weighted_sum(weights)
        for index, value in enumerate(found.values()):
            wanted = sum(weight * grads[index] for weight, grads in zip(weights, expected, strict=True))
            assert torch.allclose(value, wanted, atol=1e-12)
        hooks.remove_hooks()


def test_the_model_is_left_as_it_was_and_a_copy_is_not_listened_to() -> None:
    model = Sentences()
    hooks = GradSampleHooks(model, batch_first=False)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(WORDS_TB), model(WORDS_TB))
    differentiate(twin(WORDS_TB).sum())
    assert twin.words.weight.grad is not None
    hooks.remove_hooks()
    assert not any("forward" in vars(layer) for layer in model.modules())


@pytest.mark.parametrize(
    "behind",
    [lambda values: values - values.mean(1, keepdim=True), lambda values: values.flip(1)],
    ids=["mean", "flip"],
)
def test_records_that_meet_on_the_second_axis_are_refused(behind: Any) -> None:
    GradSampleModule(Behind(lambda values: values - values.mean(0)), batch_first=False)(WORDS_TB)
    with pytest.raises(NotPrivate):
        GradSampleModule(Behind(behind), batch_first=False)(WORDS_TB)


def test_a_model_with_its_records_first_is_refused_as_one_with_its_records_second() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), DPLSTM(4, 3, batch_first=True))
    with pytest.raises(NotPrivate):
        GradSampleModule(model, batch_first=False)(WORDS_TB)


def test_a_parameter_without_a_rule_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 2))
    with pytest.raises(NotPrivate, match=r"module\.1\."):
        GradSampleModule(model, batch_first=False)


@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_sequences_have_the_gradients_of_each_record_alone(batch_first: bool) -> None:
    lengths = [2, 5, 17, 1, 4]
    values = [torch.randn(length, 3, dtype=torch.float64) for length in lengths]
    layer = DPLSTM(3, 2, batch_first=batch_first).double()
    expected = []
    for value in values:
        loss = layer(pack_sequence([value]))[1][0].square().sum()
        expected.append(torch.autograd.grad(loss, list(layer.parameters())))
    model = GradSampleModule(layer, batch_first=batch_first, loss_reduction="sum")
    _, (hidden, _) = model(pack_sequence(values, enforce_sorted=False))
    differentiate(hidden.square().sum())
    norms = [torch.sqrt(sum((part.square().sum() for part in grads), torch.zeros(()))) for grads in expected]
    assert torch.allclose(model.hooks.listener.gradients().norms(), torch.stack(norms).double(), rtol=1e-9)


def turned(records: list[Any]) -> Any:
    return torch.stack([words for words, _ in records], 1), torch.stack([target for _, target in records])


def loop(collate: Any, *, positions: int) -> tuple[PrivacyEngine, Any, Any, Any]:
    words = torch.arange(40 * positions).reshape(40, positions) % 10
    engine, model = PrivacyEngine(), Sentences()
    made = engine.make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(TensorDataset(words, words[:, 0] % 3), batch_size=2, collate_fn=collate),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        batch_first=False,
    )
    return engine, *made


def test_a_loop_runs_on_draws_of_any_size_and_is_counted() -> None:
    engine, model, optimizer, loader = loop(turned, positions=8)
    drawn: list[int] = []
    while 0 not in drawn or len(drawn) < 8:
        for words, targets in loader:
            assert words.shape[0] == 8
            drawn.append(words.shape[1])
            optimizer.zero_grad()
            differentiate(functional.cross_entropy(model(words), targets))
            optimizer.step()
            if 0 in drawn and len(drawn) >= 8:
                break
    assert engine.accountant.history == [(1.0, 0.05, len(drawn))]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_collation_that_mixes_records_on_the_second_axis_is_refused() -> None:
    def mixed(records: list[Any]) -> Any:
        words, targets = turned(records)
        return words.roll(1, 1) + words, targets

    with pytest.raises(NotPrivate, match="collate_fn"):
        loop(mixed, positions=5)
