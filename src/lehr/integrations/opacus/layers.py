"""Opacus's layers: torch's own, with rules that give every record's gradient.

- ``DPRNN``, ``DPGRU``, ``DPLSTM``: in evaluation these are torch's, fused kernels included. In training the gates are
  computed step by step. The inputs of the recurrent weights are known only at the end, so the hidden states are first
  computed without a graph; then a tensor of zeros is added to the output of those weights, and its gradient is theirs.
- ``DPMultiheadAttention``: ``torch.nn.MultiheadAttention``, which Lehr's engines support
- ``SequenceBias``: a learned element at the end of every sequence

Axes: B records, T positions of the sequence, D inputs, H hidden units, G gates times H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lehr.errors import InvalidValue
from lehr.gradients.rules import bias_grads, outer_product
from lehr.interfaces import Contribution, Contributions, LayerRule, Site, Tap, at_least_float32, register_layer_rule


class DPMultiheadAttention(nn.MultiheadAttention):
    """``torch.nn.MultiheadAttention`` itself, with all its options and its ``state_dict``."""


class SequenceBias(nn.Module):
    """Appends a learned element to the end of every sequence.

    >>> SequenceBias(16)(torch.zeros(20, 4, 16)).shape
    torch.Size([21, 4, 16])
    """

    def __init__(self, embed_dim: int, batch_first: bool = False) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.bias = nn.Parameter(torch.empty(embed_dim))
        nn.init.normal_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return _append_bias(self, lambda name, inputs, output: output, x)


def _append_bias(layer: SequenceBias, tap: Tap, x: Tensor) -> Tensor:
    bias = layer.bias.expand(x.shape[0 if layer.batch_first else 1], 1, -1).clone()
    bias = tap("bias", bias, bias)
    return torch.cat([x, bias], dim=1) if layer.batch_first else torch.cat([x, bias.transpose(0, 1)])


def _bias_contributions(layer: SequenceBias, sites: Mapping[str, Site]) -> Contributions:
    grads = sites["bias"].output_grads
    return {"bias": grads.flatten(1, -2).sum(1, dtype=at_least_float32(grads.dtype))}


register_layer_rule(SequenceBias, LayerRule(contributions=_bias_contributions, forward=_append_bias))


State: TypeAlias = tuple[Tensor, ...]  # the hidden state, and for an LSTM its cells, each [B, H]
Cell: TypeAlias = Callable[[Tensor, Tensor, State], State]

# Packed sequences are padded to a multiple of this, so that one record hardly ever changes the shape of the others.
PADDED_TO = 16


class DPRNN(nn.RNN):
    """``torch.nn.RNN`` with private gradients."""


class DPGRU(nn.GRU):
    """``torch.nn.GRU`` with private gradients."""


class DPLSTM(nn.LSTM):
    """``torch.nn.LSTM`` with private gradients.

    >>> sorted(DPLSTM(3, 4).state_dict()) == sorted(nn.LSTM(3, 4).state_dict())
    True
    """


def _gru_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    input_r, input_z, input_n = from_input.chunk(3, dim=1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, dim=1)
    new = torch.tanh(input_n + torch.sigmoid(input_r + hidden_r) * hidden_n)
    return (torch.lerp(new, state[0], torch.sigmoid(input_z + hidden_z)),)


def _lstm_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    size = state[0].shape[1]
    enter_and_keep, new, show = (from_input + from_hidden).split_with_sizes([2 * size, size, size], dim=1)
    enter, keep = torch.sigmoid(enter_and_keep).chunk(2, dim=1)
    cells = torch.addcmul(keep * state[1], enter, torch.tanh(new))
    return torch.sigmoid(show) * torch.tanh(cells), cells


_CELLS: dict[str, Cell] = {
    "RNN_TANH": lambda from_input, from_hidden, _: (torch.tanh(from_input + from_hidden),),
    "RNN_RELU": lambda from_input, from_hidden, _: (torch.relu(from_input + from_hidden),),
    "GRU": _gru_cell,
    "LSTM": _lstm_cell,
}


def pad_packed(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """The values [B, T, D] of packed sequences, and the positions [B, T] that each record has."""
    width = -(-len(packed.batch_sizes) // PADDED_TO) * PADDED_TO
    values, lengths = pad_packed_sequence(packed, batch_first=True, total_length=width)
    return values, torch.arange(width, device=values.device) < lengths.to(values.device).unsqueeze(1)


def _forward(layer: nn.RNNBase, tap: Tap, inputs: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    mask: Tensor | None = None
    if isinstance(inputs, PackedSequence):
        values, mask = pad_packed(inputs)
    elif inputs.dim() == 3:
        values = inputs if layer.batch_first else inputs.transpose(0, 1)
    else:
        allowed = "three axes: records, positions and features"
        raise InvalidValue(f"the input of {type(layer).__name__}", allowed=allowed, given=tuple(inputs.shape))
    num_positions = len(inputs.batch_sizes) if isinstance(inputs, PackedSequence) else values.shape[1]
    directions = ("", "_reverse") if layer.bidirectional else ("",)
    if hx is None:
        zeros = values.new_zeros(values.shape[0], layer.hidden_size)
        before: list[State] = [(zeros,) * (2 if layer.mode == "LSTM" else 1)] * (layer.num_layers * len(directions))
    else:
        given = hx if layer.mode == "LSTM" else (hx,)
        before = list(zip(*(state.unbind(0) for state in given), strict=True))
    after: list[State] = []
    for number in range(layer.num_layers):
        outputs = []
        for direction in directions:
            suffix = f"_l{number}{direction}"
            hidden, last = _run(layer, tap, suffix, values, mask, before[len(after)], num_positions=num_positions)
            outputs.append(hidden)
            after.append(last)
        values = torch.cat(outputs, dim=2)
        if number < layer.num_layers - 1:
            values = functional.dropout(values, layer.dropout, training=layer.training)
    states = tuple(torch.stack(states) for states in zip(*after, strict=True))
    return _in_input_layout(layer, inputs, values), states if layer.mode == "LSTM" else states[0]


def _in_input_layout(layer: nn.RNNBase, inputs: Tensor | PackedSequence, outputs: Tensor) -> Tensor | PackedSequence:
    if isinstance(inputs, PackedSequence):
        _, lengths = pad_packed_sequence(inputs, batch_first=True)
        packed = pack_padded_sequence(outputs, lengths, batch_first=True, enforce_sorted=False)
        return packed if inputs.sorted_indices is not None else PackedSequence(packed.data, packed.batch_sizes)
    return outputs if layer.batch_first else outputs.transpose(0, 1)


def _run(
    layer: nn.RNNBase, tap: Tap, suffix: str, inputs: Tensor, mask: Tensor | None, first: State, *, num_positions: int
) -> tuple[Tensor, State]:
    """One direction of one layer: its hidden states at every position, and its state at the end."""
    cell, is_reversed = _CELLS[layer.mode], suffix.endswith("_reverse")
    weight_ih, weight_hh = (getattr(layer, f"weight_{part}{suffix}") for part in ("ih", "hh"))
    bias_ih, bias_hh = (getattr(layer, f"bias_{part}{suffix}") if layer.bias else None for part in ("ih", "hh"))

    def recur(from_input: Tensor, state: State, probe: Tensor | None) -> tuple[Tensor, State]:
        """A record whose sequence has ended, or not yet begun, keeps its state."""
        hidden: dict[int, Tensor] = {}
        inputs, probes = from_input.unbind(1), None if probe is None else probe.unbind(1)
        for step in sorted(range(num_positions), reverse=is_reversed):
            from_hidden = functional.linear(state[0], weight_hh, bias_hh)
            if probes is not None:
                from_hidden = from_hidden + probes[step]
            new = cell(inputs[step], from_hidden, state)
            if mask is not None:
                now = mask[:, step, None]
                new = tuple(torch.where(now, after, before) for after, before in zip(new, state, strict=True))
            state = new
            hidden[step] = state[0]
        return torch.stack([hidden[step] for step in range(num_positions)], dim=1), state

    def padded(hidden: Tensor) -> Tensor:
        """Zeros where a record has no position, so that nothing there depends on other records."""
        if mask is None:
            return hidden
        longer = functional.pad(hidden, (0, 0, 0, mask.shape[1] - num_positions))
        return longer.masked_fill(~mask.unsqueeze(2), 0)

    from_input = functional.linear(inputs, weight_ih, bias_ih)
    with torch.no_grad():
        hidden, _ = recur(from_input.detach(), tuple(part.detach() for part in first), None)
        start = first[0].detach().unsqueeze(1)  # the hidden state that every position starts from
        if num_positions == 1:  # torch.cat rejects the empty rest of an empty batch
            before = start
        else:
            before = torch.cat([hidden[:, 1:], start] if is_reversed else [start, hidden[:, :-1]], dim=1)
    from_input = tap(f"input{suffix}", inputs, from_input)
    probe = tap(f"hidden{suffix}", padded(before), torch.zeros_like(from_input))
    hidden, last = recur(from_input, first, probe)
    return padded(hidden), last


def _contributions(layer: nn.RNNBase, sites: Mapping[str, Site]) -> Contributions:
    contributions: dict[str, Contribution | Tensor] = {}
    for site_name, site in sites.items():
        kind, suffix = site_name.split("_", 1)
        part = "ih" if kind == "input" else "hh"
        contributions[f"weight_{part}_{suffix}"] = outer_product(site)
        if layer.bias:
            contributions[f"bias_{part}_{suffix}"] = bias_grads(site)
    return contributions


def _refuses(layer: nn.RNNBase) -> str | None:
    reason = "it projects its hidden states (proj_size), for which there is no rule; proj_size=0"
    return reason if layer.proj_size else None


for _kind in (DPRNN, DPGRU, DPLSTM):
    register_layer_rule(_kind, LayerRule(contributions=_contributions, forward=_forward, refuses=_refuses))
