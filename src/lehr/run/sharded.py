"""Sharded weights: each rank holds some rows of every parameter (FSDP2).

    rank 0   rows 0 to 2 of each weight, of its sum, its noise, its momentum and its average
    rank 1   rows 3 to 5
                 │ forward, backward: a layer's rows are gathered from all ranks while it runs (``fully_shard``)
                 ▼
    clipped sum of a layer over this rank's records ─► to each rank its rows ─► added in the order of the ranks

All ranks run the same loop, and each updates its own rows. Between steps a rank holds its rows and the buffers only.
Rank 0 writes checkpoints whole, tensor by tensor: the same file that one process writes. A run can be resumed on any
number of ranks, each of which loads its rows.

The proof is in ``run/private_run.proof.md``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients.hooked import ShardedEngine
from lehr.interfaces import layer_rule
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.run.distributed import Ranks
from lehr.run.train_state import TrainState, evaluating

MODEL = "model/"
OPTIMIZER = "optimizer"  # its tensors are named optimizer/PARAMETER/NAME
_OF_A_PARAMETER = ("model", "average", OPTIMIZER)  # prefixes of tensors in a checkpoint


def rows_of(length: int, total: int) -> list[range]:
    """The rows that each rank holds. Like in torch, the last ranks may have fewer, or none.

    >>> rows_of(5, 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    each = -(-length // total)
    return [range(min(length, each * rank), min(length, each * (rank + 1))) for rank in range(total)]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shapes of the whole parameters, in the model's order, and the rows of each rank."""

    shapes: Mapping[str, torch.Size]
    trained: tuple[str, ...]
    number: int
    total: int

    def rows(self, name: str, rank: int | None = None) -> range:
        """The rows of a parameter that a rank holds; by default this rank."""
        return rows_of(self.shapes[name][0], self.total)[self.number if rank is None else rank]

    def shape(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """The shape of a rank's rows."""
        return (len(self.rows(name, rank)), *self.shapes[name][1:])

    def span(self, name: str) -> tuple[int, int]:
        """Start and end of this rank's rows in the concatenation of all trained parameters."""
        before = self._begins[name]
        width, rows = self.shapes[name][1:].numel(), self.rows(name)
        return before + width * rows.start, before + width * rows.stop

    @cached_property
    def count(self) -> int:
        """The length of that concatenation."""
        return sum(self.shapes[name].numel() for name in self.trained)

    @cached_property
    def _begins(self) -> dict[str, int]:
        lengths = [self.shapes[name].numel() for name in self.trained]
        return dict(zip(self.trained, accumulate(lengths, initial=0), strict=False))

    def owner(self, name: str, value: Tensor) -> str | None:
        """The parameter that a tensor in a checkpoint belongs to; None for counters and buffers."""
        first, _, rest = name.partition("/")
        owner = rest.rpartition("/")[0] if first == OPTIMIZER else rest if first in _OF_A_PARAMETER else ""
        return owner if owner in self.shapes and value.dim() else None


@dataclass(frozen=True, slots=True)
class ShardRandomness(StepRandomness):
    """The randomness of a step, with the noise of this rank's rows only."""

    layout: Layout

    def spans(self, like: Mapping[str, Tensor]) -> tuple[list[tuple[int, int]], int]:
        """Where one process would draw the numbers of this rank's rows."""
        return [self.layout.span(name) for name in like], self.layout.count


class Shards:
    """This rank's shard of a model, and the collectives over all shards.

    ``model`` gathers its weights while it runs. ``local`` has the same parameter names and shares memory with this
    rank's rows: the optimizer, averages and checkpoints use it like any model.
    """

    def __init__(self, model: nn.Module, engine: ShardedEngine, ranks: Ranks, device: torch.device) -> None:
        ranks.broadcast([*model.parameters(), *model.buffers()])
        shapes = {name: value.shape for name, value in model.named_parameters()}
        trained = tuple(name for name, value in model.named_parameters() if value.requires_grad)
        self.model, self.ranks = model, ranks
        self.layout = Layout(shapes=shapes, trained=trained, number=ranks.number, total=ranks.total)
        self.local = _empty_copy(model)
        _shard(model, device, total=ranks.total)
        engine.let_go(self.reduce_scatter)

    def bind(self) -> None:
        """Give ``local`` this rank's rows. The model must have run once: torch may move them until then."""
        local_parameters = dict(self.local.named_parameters())
        for name, value in self.model.named_parameters():
            local = value.detach().to_local()  # type: ignore[attr-defined]
            if tuple(local.shape) != self.layout.shape(name):
                raise InvalidValue("model", allowed=f"rows {self.layout.rows(name)} of {name} here", given=local.shape)
            local_parameters[name].data = local

    # Collectives: every rank calls the same ones in the same order.

    def at(self, key: RunKey, step: int, attempt: int) -> ShardRandomness:
        """The randomness of one attempt at one step."""
        return ShardRandomness(key=key, step=step, attempt=attempt, layout=self.layout)

    def reduce_scatter(self, name: str, whole: Tensor) -> Tensor:
        """This rank's rows of the sum over all ranks, added in the order of the ranks."""
        if self.ranks.total == 1:
            return whole
        lengths = [whole[: len(self.layout.rows(name, rank))].numel() for rank in range(self.ranks.total)]
        return self.ranks.reduce_scatter(whole.reshape(-1), lengths).reshape(self.layout.shape(name))

    @contextmanager
    def showing(self, state: TrainState) -> Iterator[nn.Module]:
        """The model with the weights that would be released now."""
        before = {name: value.clone() for name, value in self.local.state_dict().items()}
        self.put(state.weights())
        try:
            with evaluating(self.model), torch.no_grad():
                yield self.model
        finally:
            self.put(before)

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite this rank's rows."""
        own = self.local.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                own[name].copy_(value)

    def gathered(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors, on the CPU of rank 0; nothing on the other ranks."""
        whole = {name: self._whole(name, value) for name, value in tensors.items()}
        return {name: value for name, value in whole.items() if value is not None}

    def whole(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole weights of these rows, on the CPU of rank 0; nothing on the other ranks."""
        return {name.removeprefix(MODEL): value for name, value in self.gathered(checkpoint_of(weights)).items()}

    def rows_of_tensor(self, name: str, value: Tensor) -> Tensor:
        """This rank's rows of a tensor in a checkpoint."""
        owner = self.layout.owner(name, value)
        if owner is None:
            return value
        rows = self.layout.rows(owner)
        return value[rows.start : rows.stop].clone()

    def _whole(self, name: str, own: Tensor) -> Tensor | None:
        owner = self.layout.owner(name, own)
        if owner is None:
            return own if self.ranks.is_rank_0 else None
        shapes = [self.layout.shape(owner, rank) for rank in range(self.ranks.total)]
        return self.ranks.gather_rows(own, shapes)


def checkpoint_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names that they have in a checkpoint."""
    return {MODEL + name: value for name, value in weights.items()}


def _empty_copy(model: nn.Module) -> nn.Module:
    """A copy of the model that shares its buffers and has empty parameters."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for value in model.parameters():
        memo[id(value)] = nn.Parameter(value.detach().new_empty(0), value.requires_grad)
    return copy.deepcopy(model, memo)


def _shard(model: nn.Module, device: torch.device, *, total: int) -> None:
    """Shard each layer with ``fully_shard``, inner layers first."""
    # Imported here, because it takes seconds.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (total,))
    for layer in reversed(_units(model)):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)


def _units(model: nn.Module) -> list[nn.Module]:
    """The layers to shard: those with parameters of their own or that use their children's, and the model itself."""
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for layer in model.modules():
        if layer in inner:
            continue
        rule = layer_rule(layer)
        is_whole = rule is not None and rule.covers_children
        if is_whole:
            inner.update(layer.modules())
        runs = type(layer).forward is not nn.Module.forward
        if layer is model or is_whole or (runs and any(True for _ in layer.parameters(recurse=False))):
            found.append(layer)
    return found
