from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lehr.gradients.rules  # noqa: F401  (teaches the rules)
from lehr import interfaces
from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import (
    Contributions,
    LayerRule,
    PrivateSum,
    ReleasedSum,
    Site,
    at_least_float32,
    layer_rule,
    layer_rules,
    register_layer_rule,
)
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import Gain, assert_same_gradients, loss_fn


class KeepsForward(nn.Linear):
    pass


class HasItsOwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return functional.linear(input, 2 * self.weight, self.bias)


def gain_contributions(_: nn.Module, sites: Mapping[str, Site]) -> Contributions:
    site = sites["output"]
    return {"gain": (site.inputs * site.output_grads).sum((1, *range(2, site.inputs.dim() - 1)))}


@pytest.fixture
def taught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of the user's own, for the length of one test."""
    monkeypatch.setattr(interfaces, "_LAYER_RULES", dict(interfaces._LAYER_RULES))
    register_layer_rule(Gain, LayerRule(contributions=gain_contributions))


def test_a_subclass_has_the_rule_of_its_parent_unless_it_changes_forward() -> None:
    assert layer_rule(KeepsForward(2, 2)) is layer_rules()[nn.Linear]
    assert layer_rule(HasItsOwnForward(2, 2)) is None
    model = HasItsOwnForward(3, 5).double()  # what it computes is differentiated
    batch = torch.randn(4, 3, dtype=torch.float64), torch.arange(4)
    expected = OneByOneEngine(model, loss_fn).gradients(*batch)
    found = GhostEngine(model, loss_fn, compiled=False).gradients(*batch)
    assert_same_gradients(found, expected, records=4)


@pytest.mark.usefixtures("taught")
def test_a_users_layer_can_have_a_rule(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(3, 5), Gain(5)).double()
    batch = torch.randn(4, 3, dtype=torch.float64), torch.arange(4)
    found = GhostEngine(model, loss_fn, compiled=False).gradients(*batch)
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(*batch), records=4)
    assert "no layer rule" not in caplog.text


@pytest.mark.parametrize("kind", [nn.Linear(1, 1), "Linear", dict, None])
def test_a_rule_is_for_a_class_of_layers(kind: object) -> None:
    with pytest.raises(InvalidValue, match=r"kind must be a subclass of torch\.nn\.Module"):
        register_layer_rule(kind, LayerRule(contributions=gain_contributions))  # type: ignore[arg-type]


def test_the_table_of_rules_cannot_be_changed_through_a_copy() -> None:
    layer_rules().clear()  # type: ignore[attr-defined]
    assert nn.Linear in layer_rules()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_norms_and_sums_have_at_least_float32(dtype: torch.dtype) -> None:
    assert at_least_float32(dtype) is (torch.float64 if dtype is torch.float64 else torch.float32)


def test_the_sensitivity_of_a_private_sum_is_fixed() -> None:
    private = PrivateSum(values={}, sensitivity=1.0)
    with pytest.raises(FrozenInstanceError):
        private.sensitivity = 0.5  # type: ignore[misc]


def test_noise_is_one_number_or_one_for_each_coordinate() -> None:
    values = {"weight": torch.ones(2), "bias": torch.ones(1)}
    assert ReleasedSum(values=values, noise_std=0.5).std_of("bias") == 0.5
    shaped = ReleasedSum(values=values, noise_std={"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor([3.0])})
    found = shaped.std_of("weight")
    assert isinstance(found, Tensor)
    assert found.dtype is torch.float64
    assert found.tolist() == [1.0, 2.0]


class Few:
    """Four records."""

    def __len__(self) -> int:
        return 4

    def batch(self, indices_B: Tensor) -> tuple[Tensor, Tensor]:
        return 10 * indices_B, indices_B


class FewStreamed(Few):
    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return ((*self.batch(part), part < 2) for part in parts)


@pytest.mark.parametrize("records, usable", [(Few(), [[True, True], [True]]), (FewStreamed(), [[True, False], [True]])])
def test_batches_come_with_a_mask_of_what_can_be_used(records: interfaces.Records, usable: list[list[bool]]) -> None:
    found = list(interfaces.batches(records, [torch.tensor([1, 3]), torch.tensor([0])]))
    assert [inputs.tolist() for inputs, _, _ in found if isinstance(inputs, Tensor)] == [[10, 30], [0]]
    assert [targets.tolist() for _, targets, _ in found] == [[1, 3], [0]]
    assert [mask.tolist() for _, _, mask in found] == usable
