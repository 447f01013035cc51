"""Hooked models: gradients of single records, with the records on any axis."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import TensorDataset

from lehr import interfaces
from lehr.errors import InvalidValue, NotPrivate
from lehr.integrations.opacus import DPLSTM, GradSampleHooks, GradSampleModule
from lehr.integrations.opacus.grad_sample import register_grad_sampler, register_norm_sampler
from tests.integrations.opacus.loops import (
    Loop,
    assert_same_gradients,
    differentiate,
    gradients_alone,
    network,
    private,
    records,
    take_step,
    take_steps,
)
from tests.integrations.refusals import invalid, not_private


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.head(inputs)
        return out

    def describe(self) -> str:
        return f"{self.seen} seen"


def test_the_wrapper_has_the_attributes_and_weights_of_the_model() -> None:
    wrapped: Any = GradSampleModule(Named())
    other = Named()
    assert wrapped.head is wrapped._module.head
    assert (wrapped.seen, wrapped.describe()) == (0, "0 seen")
    assert not hasattr(wrapped, "nothing")
    assert set(wrapped.state_dict()) == {"_module.head.weight", "_module.head.bias"}  # as in Opacus
    wrapped.load_state_dict(other.state_dict())
    assert torch.equal(wrapped.head.weight, other.head.weight)
    wrapped.load_state_dict(GradSampleModule(other).state_dict())


def test_evaluation_builds_no_graph_and_disturbs_no_step() -> None:
    loop = private()
    for batch, targets in loop.loader:
        differentiate(functional.cross_entropy(loop.model(batch), targets))
        loop.model.eval()
        assert not loop.model(records().tensors[0]).requires_grad
        loop.model.train()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    assert len(loop.engine.accountant) == 5


def test_the_standard_module_is_the_model_as_it_was() -> None:
    model = network()
    loop = private(model=model)
    take_steps(loop, 1)
    assert not any(hasattr(parameter, "grad_sample") for parameter in model.parameters())
    assert loop.model.to_standard_module() is model
    assert all("forward" not in vars(layer) for layer in model.modules())
    model.zero_grad()
    differentiate(model(records().tensors[0]).sum())
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_two_batches_in_one_step_are_refused() -> None:
    loop = private()
    batches = iter(loop.loader)
    inputs, targets = next(batches)
    differentiate(functional.cross_entropy(loop.model(inputs), targets))
    with invalid("loop"):
        loop.model(next(batches)[0])
    with invalid("loop"):
        loop.model.allow_grad_accumulation()


@pytest.mark.parametrize("wrong", [{"strict": False}, {"loss_reduction": "none"}])
def test_unsupported_options_are_refused(wrong: dict[str, Any]) -> None:
    with invalid(next(iter(wrong))):
        GradSampleHooks(Named(), **wrong)


# Grad samplers.

INPUTS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Scaled(nn.Module):
    """Each feature times a learned number."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "_LAYER_RULES", dict(interfaces._LAYER_RULES))


def by_record(layer: Any, activations: list[Tensor], backprops: Tensor) -> Mapping[nn.Parameter, Tensor]:
    return {layer.scale: activations[0] * backprops}


def mixing(layer: Any, activations: list[Tensor], backprops: Tensor) -> Mapping[nn.Parameter, Tensor]:
    return {layer.scale: (activations[0] * backprops).sum(0, keepdim=True).expand(len(backprops), -1)}


@pytest.mark.parametrize("sampler", [by_record, mixing])
def test_a_grad_sampler_sees_one_record_at_a_time(sampler: Any) -> None:
    assert register_norm_sampler(Scaled)(register_grad_sampler([Scaled])(sampler)) is sampler
    model = GradSampleModule(Scaled(), loss_reduction="sum")
    differentiate(model(INPUTS).sum())
    assert torch.allclose(model.hooks.gradients().norms(), INPUTS.norm(dim=1))


def test_rules_of_lehr_cannot_be_replaced() -> None:
    with pytest.raises(InvalidValue, match="Linear"):
        register_grad_sampler(nn.Linear)(by_record)


# Parameters outside of layers.


class Classified(nn.Module):
    """A class token before the tokens of a record, and positions, as in a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        like: Any = {"generator": torch.Generator().manual_seed(0), "dtype": torch.float64}
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4, **like))
        self.positions = nn.Parameter(torch.randn(1, 4, 4, **like))
        self.head = nn.Linear(4, 3, dtype=torch.float64)

    def forward(self, tokens_BTF: Tensor) -> Tensor:
        first_B1F = self.cls_token.expand(len(tokens_BTF), -1, -1)
        mixed_BTF = torch.tanh(torch.cat([first_B1F, tokens_BTF], dim=1) + self.positions)
        logits: Tensor = self.head(mixed_BTF[:, 0] * mixed_BTF.mean(1))
        return logits


def test_class_token_and_positions_have_the_gradient_of_each_record() -> None:
    tokens_BTF = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    alone = Classified()
    model = GradSampleModule(copy.deepcopy(alone), loss_reduction="sum")
    differentiate(model(tokens_BTF).square().sum())
    expected = []
    for record in torch.split(tokens_BTF, 1):
        grads = torch.autograd.grad(alone(record).square().sum(), list(alone.parameters()))
        assert all(grad.abs().sum() > 0 for grad in grads)
        expected.append(torch.cat([grad.flatten() for grad in grads]).norm())
    torch.testing.assert_close(model.hooks.gradients().norms(), torch.stack(expected))


# Records on the second axis, and packed sequences.

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


class Then(nn.Module):
    """Something is done after the last layer."""

    def __init__(self, last: Any) -> None:
        super().__init__()
        self.words, self.every, self.last = nn.Embedding(10, 4), nn.Linear(4, 4), last

    def forward(self, words: Tensor) -> Tensor:
        found: Tensor = self.last(self.every(self.words(words)))
        return found


def test_gradients_are_right_with_records_on_the_second_axis() -> None:
    model = Sentences().double()

    def loss(own: slice) -> Tensor:
        return functional.cross_entropy(model(WORDS_TB[:, own]), TARGETS_B[own])

    expected = gradients_alone(model, loss, count=5)
    for wrap in (GradSampleModule, GradSampleHooks):
        hooks: Any = wrap(model, batch_first=False)
        differentiate(loss(slice(None)))
        assert_same_gradients(getattr(hooks, "hooks", hooks).gradients(), expected)
        hooks.remove_hooks()


def test_a_copy_of_the_model_has_no_hooks() -> None:
    model = Then(lambda values: values)
    hooks = GradSampleHooks(model, batch_first=False)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(WORDS_TB), model(WORDS_TB))
    differentiate(twin(WORDS_TB).sum())
    assert twin.words.weight.grad is not None
    hooks.remove_hooks()
    assert not any("forward" in vars(layer) for layer in model.modules())


@pytest.mark.parametrize(
    "model",
    [
        Then(lambda values: values - values.mean(1, keepdim=True)),
        Then(lambda values: values.flip(1)),
        nn.Sequential(nn.Embedding(10, 4), DPLSTM(4, 3, batch_first=True)),
    ],
    ids=["mean", "flip", "records first"],
)
def test_mixing_along_the_second_axis_is_refused(model: nn.Module) -> None:
    GradSampleModule(Then(lambda values: values - values.mean(0)), batch_first=False)(WORDS_TB)
    with pytest.raises(NotPrivate):
        GradSampleModule(model, batch_first=False)(WORDS_TB)


def test_a_parameter_without_a_rule_needs_records_first() -> None:
    with not_private("batch_first=False"):
        GradSampleModule(nn.Sequential(nn.Linear(3, 3), nn.Bilinear(3, 3, 2)), batch_first=False)


@pytest.mark.parametrize("batch_first", [True, False])
def test_gradients_of_packed_sequences_are_right(batch_first: bool) -> None:
    values = [torch.randn(length, 3, dtype=torch.float64) for length in (2, 5, 17, 1, 4)]
    layer = DPLSTM(3, 2, batch_first=batch_first).double()

    def loss(hidden: tuple[Any, tuple[Tensor, Tensor]]) -> Tensor:
        return hidden[1][0].square().sum()

    expected = gradients_alone(layer, lambda own: loss(layer(pack_sequence(values[own]))), count=5)
    model = GradSampleModule(layer, batch_first=batch_first, loss_reduction="sum")
    differentiate(loss(model(pack_sequence(values, enforce_sorted=False))))
    assert_same_gradients(model.hooks.gradients(), expected)


def columns(records: list[Any]) -> Any:
    return torch.stack([words for words, _ in records], 1), torch.stack([target for _, target in records])


def mixed(records: list[Any]) -> Any:
    words, targets = columns(records)
    return words.roll(1, 1) + words, targets


def loop_of(collate: Any, *, positions: int) -> Loop:
    words = torch.arange(40 * positions).reshape(40, positions) % 10
    model = Then(lambda values: values[-1])
    dataset = TensorDataset(words, words[:, 0] % 3)
    return private(model=model, dataset=dataset, batch_size=1, collate_fn=collate, batch_first=False)


def test_a_loop_with_records_on_the_second_axis_has_draws_of_any_size() -> None:
    loop, drawn = loop_of(columns, positions=8), list[int]()
    while 0 not in drawn or not any(drawn):
        batch = next(iter(loop.loader))
        assert batch[0].shape[0] == 8
        drawn.append(batch[0].shape[1])
        take_step(loop, batch)
    assert loop.engine.accountant.history == [(1.0, 0.025, len(drawn))]
    assert all(parameter.isfinite().all() for parameter in loop.model.parameters())


def test_collation_that_mixes_records_on_the_second_axis_is_refused() -> None:
    with not_private("collate_fn"):
        loop_of(mixed, positions=5)
