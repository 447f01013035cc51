"""Recurrent layers: torch's own, with a rule by which every record's gradient is had from two sites a layer.

Evaluated, such a layer is torch's, fused kernels included. Trained, its gates are added up step by step. What goes into
the recurrent weights is known only at the end, so that the hidden states are computed first, without a graph; then a
tensor of zeros is added to what comes out of those weights, and its gradient is theirs.

Axes: B records, T positions of the sequence, D inputs, H hidden numbers, G gates times H.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from lehr.errors import InvalidValue
from lehr.gradients.rules.linear import bias_grads, outer_product
from lehr.interfaces import Contribution, Contributions, LayerRule, Site, Tap, register_layer_rule

State: TypeAlias = tuple[Tensor, ...]  # hidden numbers, and for an LSTM its cells, each [B, H]
Cell: TypeAlias = Callable[[Tensor, Tensor, State], State]

# Packed sequences are padded to a multiple of this, so that the shape of one record's part does not follow the others'.
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


def _tanh_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.tanh(from_input + from_hidden),)


def _relu_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    return (torch.relu(from_input + from_hidden),)


def _gru_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    input_r, input_z, input_n = from_input.chunk(3, dim=1)
    hidden_r, hidden_z, hidden_n = from_hidden.chunk(3, dim=1)
    new = torch.tanh(input_n + torch.sigmoid(input_r + hidden_r) * hidden_n)
    return (torch.lerp(new, state[0], torch.sigmoid(input_z + hidden_z)),)


def _lstm_cell(from_input: Tensor, from_hidden: Tensor, state: State) -> State:
    enter, keep, new, show = (from_input + from_hidden).chunk(4, dim=1)
    cells = torch.sigmoid(keep) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cells), cells


_CELLS: dict[str, Cell] = {"RNN_TANH": _tanh_cell, "RNN_RELU": _relu_cell, "GRU": _gru_cell, "LSTM": _lstm_cell}


class _Weights(NamedTuple):
    """The weights of one direction of one layer, by the end of their names."""

    suffix: str
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None


class _Sequences(NamedTuple):
    """Inputs with the records first; where sequences differ in length, which positions each has."""

    values_BTD: Tensor  # noqa: N815
    held_BT: Tensor | None  # noqa: N815
    num_positions: int  # that any record has; what stands behind them is padding


def _forward(layer: nn.RNNBase, tap: Tap, inputs: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
    sequences = _records_first(layer, inputs)
    before = _first_states(layer, sequences.values_BTD, hx)
    after: list[State] = []
    for number in range(layer.num_layers):
        outputs = []
        for weights in _directions(layer, number):
            hidden, last = _run(layer, tap, weights, sequences, before[len(after)])
            outputs.append(hidden)
            after.append(last)
        together = torch.cat(outputs, dim=2)
        if number < layer.num_layers - 1:
            together = functional.dropout(together, layer.dropout, training=layer.training)
        sequences = sequences._replace(values_BTD=together)
    states = tuple(torch.stack(states) for states in zip(*after, strict=True))
    return _as_given(layer, inputs, sequences.values_BTD), states if layer.mode == "LSTM" else states[0]


def _records_first(layer: nn.RNNBase, inputs: Tensor | PackedSequence) -> _Sequences:
    if isinstance(inputs, PackedSequence):
        num_positions = len(inputs.batch_sizes)
        padded = -(-num_positions // PADDED_TO) * PADDED_TO
        values, lengths = pad_packed_sequence(inputs, batch_first=True, total_length=padded)
        positions = torch.arange(padded, device=values.device)
        return _Sequences(values, positions < lengths.to(values.device).unsqueeze(1), num_positions)
    if inputs.dim() != 3:
        allowed = "three axes: records, positions and features"
        raise InvalidValue(f"the input of {type(layer).__name__}", allowed=allowed, given=tuple(inputs.shape))
    values = inputs if layer.batch_first else inputs.transpose(0, 1)
    return _Sequences(values, None, values.shape[1])


def _as_given(layer: nn.RNNBase, inputs: Tensor | PackedSequence, outputs: Tensor) -> Tensor | PackedSequence:
    if isinstance(inputs, PackedSequence):
        _, lengths = pad_packed_sequence(inputs, batch_first=True)
        packed = pack_padded_sequence(outputs, lengths, batch_first=True, enforce_sorted=False)
        return packed if inputs.sorted_indices is not None else PackedSequence(packed.data, packed.batch_sizes)
    return outputs if layer.batch_first else outputs.transpose(0, 1)


def _first_states(layer: nn.RNNBase, values: Tensor, hx: Any) -> list[State]:
    num_directions = 2 if layer.bidirectional else 1
    num_states = 2 if layer.mode == "LSTM" else 1
    if hx is None:
        zeros = values.new_zeros(values.shape[0], layer.hidden_size)
        return [(zeros,) * num_states] * (layer.num_layers * num_directions)
    given = hx if layer.mode == "LSTM" else (hx,)
    return list(zip(*(state.unbind(0) for state in given), strict=True))


def _directions(layer: nn.RNNBase, number: int) -> Iterator[_Weights]:
    for suffix in (f"_l{number}", f"_l{number}_reverse")[: 2 if layer.bidirectional else 1]:
        biases = (getattr(layer, f"bias_{part}{suffix}") if layer.bias else None for part in ("ih", "hh"))
        yield _Weights(suffix, getattr(layer, f"weight_ih{suffix}"), getattr(layer, f"weight_hh{suffix}"), *biases)


def _run(layer: nn.RNNBase, tap: Tap, weights: _Weights, sequences: _Sequences, first: State) -> tuple[Tensor, State]:
    """One direction of one layer: its hidden states at every position, and its state at the end."""
    cell = _CELLS[layer.mode]
    inputs = sequences.values_BTD
    from_input = functional.linear(inputs, weights.weight_ih, weights.bias_ih)
    with torch.no_grad():
        hidden, _ = _stepped(cell, weights, from_input.detach(), sequences, _detached(first), None)
        before = _shifted(hidden, first[0].detach(), backwards=weights.suffix.endswith("_reverse"))
        before = _padded(before, sequences)
    from_input = tap(f"input{weights.suffix}", inputs, from_input)
    probe = tap(f"hidden{weights.suffix}", before, torch.zeros_like(from_input))
    hidden, last = _stepped(cell, weights, from_input, sequences, first, probe)
    return _padded(hidden, sequences), last


def _stepped(
    cell: Cell, weights: _Weights, from_input: Tensor, sequences: _Sequences, state: State, probe: Tensor | None
) -> tuple[Tensor, State]:
    """The recurrence itself. A record whose sequence has ended, or has not begun yet, keeps its state."""
    steps = range(sequences.num_positions)
    held = sequences.held_BT
    hidden: dict[int, Tensor] = {}
    inputs, probes = from_input.unbind(1), None if probe is None else probe.unbind(1)
    for step in reversed(steps) if weights.suffix.endswith("_reverse") else steps:
        from_hidden = functional.linear(state[0], weights.weight_hh, weights.bias_hh)
        if probes is not None:
            from_hidden = from_hidden + probes[step]
        new = cell(inputs[step], from_hidden, state)
        if held is not None:
            now = held[:, step, None]
            new = tuple(torch.where(now, after, before) for after, before in zip(new, state, strict=True))
        state = new
        hidden[step] = state[0]
    return torch.stack([hidden[step] for step in steps], dim=1), state


def _shifted(hidden: Tensor, first: Tensor, *, backwards: bool) -> Tensor:
    """The hidden state that every position starts from."""
    start = first.unsqueeze(1)
    if hidden.shape[1] == 1:  # nothing is left to put beside it, and nothing has no records
        return start
    return torch.cat([hidden[:, 1:], start], dim=1) if backwards else torch.cat([start, hidden[:, :-1]], dim=1)


def _padded(hidden: Tensor, sequences: _Sequences) -> Tensor:
    """The same with zeros where a record has no position, so that nothing there tells of the other records."""
    if sequences.held_BT is None:
        return hidden
    longer = functional.pad(hidden, (0, 0, 0, sequences.values_BTD.shape[1] - sequences.num_positions))
    return longer.masked_fill(~sequences.held_BT.unsqueeze(2), 0)


def _detached(state: State) -> State:
    return tuple(part.detach() for part in state)


def _contributions(layer: nn.RNNBase, sites: Mapping[str, Site]) -> Contributions:
    found: dict[str, Contribution | Tensor] = {}
    for site_name, site in sites.items():
        kind, suffix = site_name.split("_", 1)
        part = "ih" if kind == "input" else "hh"
        found[f"weight_{part}_{suffix}"] = outer_product(site)
        if layer.bias:
            found[f"bias_{part}_{suffix}"] = bias_grads(site)
    return found


def _refuses(layer: nn.RNNBase) -> str | None:
    if layer.proj_size:
        return "it projects its hidden states (proj_size), for which there is no rule; proj_size=0"
    return None


for _kind in (DPRNN, DPGRU, DPLSTM):
    register_layer_rule(_kind, LayerRule(contributions=_contributions, forward=_forward, refuses=_refuses))
