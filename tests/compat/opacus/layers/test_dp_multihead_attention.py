from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.compat.opacus.layers import DPMultiheadAttention, SequenceBias
from lehr.gradients.hooked import HookedEngine
from tests.compat.opacus.loops import differentiate


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


def test_weights_are_torchs() -> None:
    ours, theirs = DPMultiheadAttention(4, 2), nn.MultiheadAttention(4, 2)
    ours.load_state_dict(theirs.state_dict())
    inputs = torch.randn(3, 2, 4)
    assert torch.equal(ours(inputs, inputs, inputs)[0], theirs(inputs, inputs, inputs)[0])


def test_the_bias_stands_at_the_end() -> None:
    layer = SequenceBias(4, batch_first=True)
    longer = layer(torch.zeros(2, 3, 4))
    assert longer.shape == (2, 4, 4)
    assert torch.equal(longer[1, 3], layer.bias)
