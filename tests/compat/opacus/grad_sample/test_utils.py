from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr import interfaces
from lehr.compat.opacus.grad_sample import GradSampleModule, register_grad_sampler, register_norm_sampler
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import differentiate

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
    found: Tensor = model.hooks.listener.gradients().norms()
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
