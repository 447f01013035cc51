from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.compat.opacus import GradSampleHooks, GradSampleModule
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import differentiate, network, private, records, take_steps


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
