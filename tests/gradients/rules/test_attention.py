from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.interfaces import layer_rule
from tests.gradients.oracle import assert_agrees, batch, ghost

CAUSAL = torch.ones(4, 4).triu(1).bool()
LEFT_PADDED = torch.tensor([[True, True, False, False], [False] * 4, [True, False, False, False]])


class Attention(nn.Module):
    """Self-attention, or attention from one tensor to two others. Weights that come out are part of the loss."""

    def __init__(self, *, crossed: bool = False, call: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, **settings)
        self.keys = nn.Linear(6, self.attention.kdim) if crossed else None
        self.values = nn.Linear(6, self.attention.vdim) if crossed else None
        self.call = call or {}

    def forward(self, inputs: Tensor, padding: Tensor | None = None) -> Tensor:
        query = inputs if self.attention.batch_first else inputs.transpose(0, 1)
        key = query if self.keys is None else self.keys(query)
        value = query if self.values is None else self.values(query)
        outputs, weights = self.attention(query, key, value, key_padding_mask=padding, **self.call)
        rows = (outputs if self.attention.batch_first else outputs.transpose(0, 1)).flatten(1)
        return torch.as_tensor(rows) if weights is None else torch.cat([rows, weights.flatten(1)], dim=1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"add_bias_kv": True, "add_zero_attn": True},
        {"crossed": True},
        {"crossed": True, "kdim": 3, "vdim": 5},
        {"crossed": True, "kdim": 3, "vdim": 5, "bias": False},
    ],
    ids=str,
)
def test_every_way_to_build_it_agrees_with_a_loop(batch_first: bool, settings: dict[str, Any]) -> None:
    for need_weights in (True, False):
        model = Attention(batch_first=batch_first, call={"need_weights": need_weights}, **settings)
        assert_agrees(model.double(), *batch(3, 4, 6))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", [None, CAUSAL, torch.randn(4, 4, dtype=torch.float64)], ids=["none", "bool", "float"])
@pytest.mark.parametrize("appended", [False, True])
def test_every_mask_agrees_with_a_loop(need_weights: bool, mask: Tensor | None, appended: bool) -> None:
    call = {"need_weights": need_weights, "attn_mask": mask}
    model = Attention(batch_first=True, call=call, add_bias_kv=appended, add_zero_attn=appended).double()
    inputs, targets_B = batch(3, 4, 6)  # noqa: N806
    assert_agrees(model, inputs, targets_B)
    if mask is None or mask.dtype != torch.bool:
        return
    padding = torch.tensor([[False, False, True, True], [False] * 4, [False, False, False, True]])
    assert_agrees(model, (inputs, padding), targets_B)


@pytest.mark.parametrize("need_weights", [True, False])
def test_the_hint_that_a_mask_is_causal_changes_nothing(need_weights: bool) -> None:
    call = {"need_weights": need_weights, "attn_mask": CAUSAL, "is_causal": True}
    assert_agrees(Attention(batch_first=True, call=call).double(), *batch(3, 4, 6))


def test_a_query_that_sees_nothing_attends_to_nothing() -> None:
    """As torch's does: padding on the left under a causal mask, as language models have it."""
    model = Attention(batch_first=True, call={"need_weights": False, "attn_mask": CAUSAL}).double()
    inputs, targets_B = batch(3, 4, 6)  # noqa: N806
    found = ghost(model, (inputs, LEFT_PADDED), targets_B)
    assert (found.norms() > 0).all()
    assert_agrees(model, (inputs, LEFT_PADDED), targets_B)


def test_weights_of_every_head_may_be_asked_for() -> None:
    call = {"average_attn_weights": False}
    assert_agrees(Attention(batch_first=True, call=call).double(), *batch(3, 4, 6))


def test_an_attention_used_twice_counts_the_product_between_its_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True, add_bias_kv=True)

        def forward(self, inputs: Tensor) -> Tensor:
            once, _ = self.attention(inputs, inputs, inputs)
            again, _ = self.attention(inputs, once, once)
            return torch.as_tensor(again)

    assert_agrees(Twice().double(), *batch(3, 4, 6))


@pytest.mark.parametrize("names", [["in_proj_weight", "in_proj_bias"], ["out_proj.weight", "out_proj.bias"]], ids=str)
def test_one_half_may_be_frozen(names: list[str]) -> None:
    model = Attention(batch_first=True).double()
    for name in names:
        model.attention.get_parameter(name).requires_grad_(False)
    assert_agrees(model, *batch(3, 4, 6))


@pytest.mark.parametrize("norm_first, training", list(product([True, False], repeat=2)))
def test_an_encoder_layer_agrees_with_a_loop(norm_first: bool, training: bool) -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=norm_first)
    assert_agrees(layer.double().train(training), *batch(3, 4, 6))


def test_a_decoder_layer_agrees_with_a_loop() -> None:
    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(inputs, inputs.flip(1)[:, 1:]))

    assert_agrees(Decoder().double(), *batch(3, 4, 6))


def test_a_sequence_first_encoder_layer_agrees_with_a_loop() -> None:
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.as_tensor(self.layer(inputs.transpose(0, 1))).transpose(0, 1)

    assert_agrees(SequenceFirst().double(), *batch(3, 4, 6))
    assert_agrees(SequenceFirst().double(), *batch(4, 4, 6))


def test_a_causal_hint_without_its_mask_is_refused() -> None:
    with pytest.raises(InvalidValue, match="attn_mask"):
        ghost(Attention(batch_first=True, call={"is_causal": True}).double(), *batch(3, 4, 6))


def test_an_input_without_an_axis_for_records_is_refused() -> None:
    """The records would be taken for the positions of one sequence, and attend to one another."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.as_tensor(self.attention(inputs, inputs, inputs)[0])

    with pytest.raises(NotPrivate, match="changes with the other records"):
        ghost(Alone().double(), *batch(3, 6))


def test_an_output_layer_of_another_kind_is_refused() -> None:
    class Other(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return -super().forward(input)

    layer = nn.MultiheadAttention(6, 2)
    rule = layer_rule(layer)
    assert rule is not None
    assert rule.refuses is not None
    assert rule.refuses(layer) is None
    layer.out_proj = Other(6, 6)  # type: ignore[assignment]
    assert "out_proj" in str(rule.refuses(layer))
