"""Models whose records do not stand on the first axis: they come second, or their sequences are packed.

    loop ── [T, B, …] ─► RecordsFirst ── [B, T, …] ─► the engine ─► the model itself, on [T, B, …]

The engine needs the records first, in the inputs of the model and of every layer. Inputs are turned around for it, and
turned back for the model. Layers that treat all positions alike (``TRAILING``) are run on the turned tensor; recurrent
layers, attention and ``SequenceBias`` know where their records are; what any other layer is given has to begin with
the records, which the engine's try of the model checks, as it checks that the second axis is the records' at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from lehr.compat.opacus.layers.dp_rnn import PADDED_TO

# How many of the last axes belong to one position.
TRAILING: dict[type[nn.Module], Callable[[Any], int]] = {
    nn.Linear: lambda layer: 1,
    nn.Embedding: lambda layer: 0,
    nn.LayerNorm: lambda layer: len(layer.normalized_shape),
    nn.RMSNorm: lambda layer: len(layer.normalized_shape),
}


class RecordsFirst(nn.Module):
    """The model, run on inputs whose first axis has the records. ``inner`` is the forward pass that it then has."""

    inner: Callable[..., Any] | None = None

    def __init__(self, module: nn.Module, *, batch_first: bool) -> None:
        super().__init__()
        self.module, self.batch_first = module, batch_first

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def as_given(leaf: Any) -> Any:
            return leaf.as_given() if isinstance(leaf, _Padded) else _turned(leaf, batch_first=self.batch_first)

        args, kwargs = _mapped(as_given, (args, kwargs))
        if self.inner is None:
            return type(self.module).forward(self.module, *args, **kwargs)
        return self.inner(*args, **kwargs)

    def on_turned(self, layer: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
        """Runs a layer of ``TRAILING`` with the records first, where its input has a position beside the record."""
        attention = (
            inner for one in self.modules() if isinstance(one, nn.MultiheadAttention) for inner in one.modules()
        )
        count = next((count for kind, count in TRAILING.items() if isinstance(layer, kind)), None)
        if self.batch_first or count is None or layer in attention:
            return run
        trailing = count(layer)

        def turned(heard: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = args[0] if args else next(iter(kwargs.values()))
            if inputs.dim() - trailing < 2:
                return run(heard, inputs)
            return run(heard, inputs.transpose(0, 1)).transpose(0, 1)

        return turned


def needed(module: nn.Module, *, batch_first: bool) -> bool:
    """Whether a model has to be run as ``RecordsFirst``: recurrent layers may be given packed sequences."""
    return not batch_first or any(isinstance(layer, nn.RNNBase) for layer in module.modules())


def records_first(inputs: Any, *, batch_first: bool = False) -> Any:
    """Inputs as ``RecordsFirst`` takes them."""

    def first(leaf: Any) -> Any:
        return _Padded.of(leaf) if isinstance(leaf, PackedSequence) else _turned(leaf, batch_first=batch_first)

    return _mapped(first, inputs)


def one_record_more(inputs: Any) -> Any:
    """The same inputs, records first, with the first record once more at their end."""
    num_records = next(leaf.shape[0] for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim())

    def longer(leaf: Tensor) -> Tensor:
        return torch.cat([leaf, leaf[:1]]) if leaf.shape[:1] == (num_records,) else leaf

    return pytree.tree_map_only(Tensor, longer, inputs)


def num_positions(inputs: Any) -> int:
    """The longest second axis of any input."""
    leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return max((leaf.shape[1] for leaf in leaves if leaf.dim() > 1), default=0)


def turned_like(outputs: Any, more: Any, *, num_positions: int) -> Any:
    """Outputs with the records first, where ``more`` are those for one record more."""

    def turned(output: Any, longer: Any) -> Any:
        if isinstance(output, PackedSequence):
            values = _Padded.of(output).values_BTD
            return functional.pad(values, (0, 0, 0, max(0, num_positions - values.shape[1])))
        if not isinstance(output, Tensor):
            return output
        grown = [axis for axis, pair in enumerate(zip(output.shape, longer.shape, strict=True)) if pair[0] != pair[1]]
        return output.movedim(grown[0], 0) if grown else output

    return pytree.tree_map(turned, outputs, more, is_leaf=_is_one)


class _Padded(NamedTuple):
    """A packed sequence, with the records first: which positions a record has is a mask."""

    values_BTD: Tensor  # noqa: N815
    held_BT: Tensor  # noqa: N815

    @classmethod
    def of(cls, packed: PackedSequence) -> _Padded:
        values, lengths = pad_packed_sequence(packed, batch_first=True)
        held = _held(lengths.to(values.device), values.shape[1])
        return cls(functional.pad(values, (0, 0, 0, held.shape[1] - values.shape[1])), held)

    def as_given(self) -> PackedSequence:
        lengths = self.held_BT.sum(1).clamp_min(1)  # a made-up record may have none
        return pack_padded_sequence(self.values_BTD, lengths.cpu(), batch_first=True, enforce_sorted=False)


def _held(lengths_B: Tensor, longest: int) -> Tensor:  # noqa: N803
    """Which positions a record has, of so many that a record that is a little shorter has as many."""
    width = -(-longest // PADDED_TO) * PADDED_TO
    return torch.arange(width, device=lengths_B.device) < lengths_B.unsqueeze(1)


def _turned(leaf: Tensor, *, batch_first: bool) -> Tensor:
    return leaf if batch_first or leaf.dim() < 2 else leaf.transpose(0, 1)


def _is_one(value: Any) -> bool:
    return isinstance(value, Tensor | PackedSequence | _Padded)


def _mapped(change: Callable[[Any], Any], inputs: Any) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if _is_one(leaf) else leaf, inputs, is_leaf=_is_one)
