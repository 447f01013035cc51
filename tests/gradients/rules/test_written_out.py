from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from lehr.gradients.rules.written_out import written_out
from tests.gradients.oracle import assert_agrees, batch


def called_layers(model: nn.Module, inputs: Tensor) -> set[str]:
    called = set()
    for name, layer in model.named_modules():
        forward = layer.forward

        def noted(*args: object, name: str = name, forward: Any = forward, **kwargs: object) -> object:
            called.add(name)
            return forward(*args, **kwargs)

        layer.forward = noted
    with torch.no_grad():
        model(inputs)
    return called


def test_an_encoder_in_eval_mode_calls_its_layers() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval()
    inputs, _ = batch(3, 4, 6, dtype=torch.float32)
    assert "linear1" not in called_layers(copy.deepcopy(layer), inputs)  # otherwise there is nothing to write out
    assert {"self_attn", "linear1", "linear2", "norm1"} <= called_layers(written_out(copy.deepcopy(layer)), inputs)


def test_an_encoder_in_eval_mode_agrees_with_a_loop() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, inputs: Tensor, padding: Tensor) -> Tensor:
            outputs: Tensor = self.encoder(inputs, src_key_padding_mask=padding)
            return outputs.masked_fill(padding.unsqueeze(-1), 0)

    inputs, targets_B = batch(3, 4, 6)  # noqa: N806
    padding = torch.tensor([[False, False, True, True], [False] * 4, [False, False, False, True]])
    assert_agrees(Padded().double().eval(), (inputs, padding), targets_B)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_computes_what_torch_does(dim: Any) -> None:
    layer = weight_norm(nn.Conv1d(3, 4, 2), dim=dim)
    torch.testing.assert_close(written_out(copy.deepcopy(layer)).weight, layer.weight)


@pytest.mark.parametrize("dim", [0, 1, None])
@pytest.mark.parametrize("records", [0, 3])
def test_weight_norm_agrees_with_a_loop(dim: Any, records: int) -> None:
    layer = weight_norm(nn.Conv1d(3, 4, 2), dim=dim)
    assert_agrees(nn.Sequential(layer, nn.Flatten(), weight_norm(nn.Linear(16, 2))).double(), *batch(records, 3, 5))
