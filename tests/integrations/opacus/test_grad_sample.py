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
from tests.integrations.opacus.loops import Loop, differentiate, network, private, records, take_step, take_steps


class Named(nn.Module):
    kind = "a class attribute"

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1)
        self.seen = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(inputs)
        return out

    def describe(self) -> str:
        return f"{self.seen} seen"


def test_what_the_model_has_the_wrapper_has() -> None:
    wrapped = GradSampleModule(Named())
    assert wrapped.head is wrapped._module.head
    assert (wrapped.kind, wrapped.seen, wrapped.describe()) == ("a class attribute", 0, "0 seen")
    with pytest.raises(AttributeError):
        wrapped.nothing  # noqa: B018


def test_weights_are_named_as_opacus_names_them_and_loaded_under_both_names() -> None:
    wrapped, other = GradSampleModule(Named()), Named()
    assert set(wrapped.state_dict()) == {"_module.head.weight", "_module.head.bias"}
    wrapped.load_state_dict(other.state_dict())
    assert torch.equal(wrapped.head.weight, other.head.weight)
    wrapped.load_state_dict(GradSampleModule(other).state_dict())


def test_an_evaluation_makes_no_graph_and_disturbs_no_step() -> None:
    loop = private()
    inputs, _ = records().tensors
    for batch, targets in loop.loader:
        differentiate(nn.functional.cross_entropy(loop.model(batch), targets))
        loop.model.eval()
        assert not loop.model(inputs).requires_grad
        loop.model.train()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    assert len(loop.engine.accountant) == 5


def test_the_standard_module_is_the_model_as_it_was() -> None:
    model = network()
    loop = private(model=model)
    take_steps(loop, 1)
    assert loop.model.to_standard_module() is model
    assert all("forward" not in vars(layer) for layer in model.modules())
    loss = model(records().tensors[0]).sum()
    model.zero_grad()
    differentiate(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_no_gradient_of_a_single_record_is_stored() -> None:
    loop = private()
    take_steps(loop, 1)
    assert not any(hasattr(parameter, "grad_sample") for parameter in loop.model.parameters())


def test_two_batches_in_one_step_are_refused() -> None:
    loop = private()
    batches = iter(loop.loader)
    inputs, targets = next(batches)
    differentiate(nn.functional.cross_entropy(loop.model(inputs), targets))
    with pytest.raises(InvalidValue, match="loop"):
        loop.model(next(batches)[0])
    with pytest.raises(InvalidValue, match="accumulation"):
        loop.model.allow_grad_accumulation()


@pytest.mark.parametrize("wrong", [{"strict": False}, {"loss_reduction": "none"}])
def test_what_is_not_offered_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        GradSampleHooks(Named(), **wrong)  # type: ignore[arg-type]


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


def norms() -> Tensor:
    model = GradSampleModule(Scaled(), loss_reduction="sum")
    differentiate(model(INPUTS).sum())
    found: Tensor = model.hooks.gradients().norms()
    return found


def test_a_grad_sampler_is_a_rule() -> None:
    calls = []

    @register_grad_sampler([Scaled])
    def sampler(layer: Any, activations: list[Tensor], backprops: Tensor) -> Mapping[nn.Parameter, Tensor]:
        calls.append(len(backprops))
        return {layer.scale: activations[0] * backprops}

    assert torch.allclose(norms(), INPUTS.norm(dim=1))
    assert calls
    assert register_norm_sampler(Scaled)(sampler) is sampler


def test_a_grad_sampler_that_mixes_records_cannot() -> None:
    @register_grad_sampler(Scaled)
    def sampler(layer: Any, activations: list[Tensor], backprops: Tensor) -> Mapping[nn.Parameter, Tensor]:
        return {layer.scale: (activations[0] * backprops).sum(0, keepdim=True).expand(len(backprops), -1)}

    assert torch.allclose(norms(), INPUTS.norm(dim=1))


def test_lehrs_own_rules_stay() -> None:
    with pytest.raises(InvalidValue, match="Linear"):
        register_grad_sampler(nn.Linear)(lambda layer, activations, backprops: {})


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
        found = getattr(hooks, "hooks", hooks).gradients().weighted_sum(weights)
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
    assert torch.allclose(model.hooks.gradients().norms(), torch.stack(norms).double(), rtol=1e-9)


def turned(records: list[Any]) -> Any:
    return torch.stack([words for words, _ in records], 1), torch.stack([target for _, target in records])


def loop(collate: Any, *, positions: int) -> Loop:
    words = torch.arange(40 * positions).reshape(40, positions) % 10
    dataset = TensorDataset(words, words[:, 0] % 3)
    return private(model=Sentences(), dataset=dataset, batch_size=1, collate_fn=collate, batch_first=False)


def test_a_loop_runs_on_draws_of_any_size_and_is_counted() -> None:
    made = loop(turned, positions=8)
    drawn: list[int] = []
    while 0 not in drawn or not any(drawn):
        batch = next(iter(made.loader))
        assert batch[0].shape[0] == 8
        drawn.append(batch[0].shape[1])
        take_step(made, batch)
    assert made.engine.accountant.history == [(1.0, 0.025, len(drawn))]
    assert all(parameter.isfinite().all() for parameter in made.model.parameters())


def test_collation_that_mixes_records_on_the_second_axis_is_refused() -> None:
    def mixed(records: list[Any]) -> Any:
        words, targets = turned(records)
        return words.roll(1, 1) + words, targets

    with pytest.raises(NotPrivate, match="collate_fn"):
        loop(mixed, positions=5)
