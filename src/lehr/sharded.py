"""A model whose weights are spread over the ranks of a run: each holds some rows of every parameter, and no more.

    rank 0   rows 0 to 2 of each weight, of its sum, its noise, its momentum and its average
    rank 1   rows 3 to 5
                 │ forward, backward: a layer's rows are gathered from all ranks while it runs (``fully_shard``)
                 ▼
    clipped sum of a layer over this rank's records ─► to each rank its rows ─► added in the order of the ranks

All ranks take a step together, each moves its own rows, and rank 0 leads: it alone charges, writes and speaks. Between
steps no rank has more than its rows, and buffers. A checkpoint is written whole, by rank 0, tensor by tensor, and is
the same file that one process writes: whoever resumes the run, on however many ranks, takes of it what is theirs.

What the guarantee rests on is in ``distributed.proof.md``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lehr.checkpoint import Checkpoint
from lehr.distributed import Ranks, as_bytes, kind
from lehr.errors import Diverged, InvalidValue
from lehr.gradients.sharded import ShardedEngine
from lehr.interfaces import layer_rule
from lehr.rng import RunKey, StepRandomness
from lehr.trainee import Trainee, diverged, evaluating

MODEL = "model/"
_OPTIMIZER = "optimizer"  # the name of what it keeps of a parameter stands behind that parameter's
_OF_A_PARAMETER = ("model", "average", _OPTIMIZER)  # how names of tensors in a checkpoint begin
STATE, STEP, SCORE, GATHER, FINITE = "state", "step", "score", "gather", "finite"  # what all ranks do
CHECKPOINT, WEIGHTS = "checkpoint", "weights"  # what is gathered


def rows_of(length: int, total: int) -> list[range]:
    """Which rows of so many each rank holds: as torch cuts them, so that the last ranks may have fewer, or none.

    >>> rows_of(5, 3)
    [range(0, 2), range(2, 4), range(4, 5)]
    """
    each = -(-length // total)
    return [range(min(length, each * rank), min(length, each * (rank + 1))) for rank in range(total)]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shapes of whole parameters, in the order of the model, and who holds what of them."""

    shapes: Mapping[str, torch.Size]
    trained: tuple[str, ...]
    number: int
    total: int

    def rows(self, name: str, rank: int | None = None) -> range:
        """The rows of a parameter that a rank holds, this one unless another is named."""
        return rows_of(self.shapes[name][0], self.total)[self.number if rank is None else rank]

    def shape(self, name: str, rank: int | None = None) -> tuple[int, ...]:
        """The shape of what a rank holds."""
        return (len(self.rows(name, rank)), *self.shapes[name][1:])

    def places(self, name: str) -> tuple[int, int]:
        """Where this rank's share of a parameter begins and ends, were all trained parameters one long vector."""
        before = self._begins[name]
        width, rows = self.shapes[name][1:].numel(), self.rows(name)
        return before + width * rows.start, before + width * rows.stop

    @cached_property
    def count(self) -> int:
        """The length of that vector."""
        return sum(self.shapes[name].numel() for name in self.trained)

    @cached_property
    def _begins(self) -> dict[str, int]:
        lengths = [self.shapes[name].numel() for name in self.trained]
        return dict(zip(self.trained, accumulate(lengths, initial=0), strict=False))

    def owner(self, name: str, value: Tensor) -> str | None:
        """The parameter that a tensor of a checkpoint has the shape of; none for counters and buffers."""
        first, _, rest = name.partition("/")
        owner = rest.rpartition("/")[0] if first == _OPTIMIZER else rest if first in _OF_A_PARAMETER else ""
        return owner if owner in self.shapes and value.dim() else None


@dataclass(frozen=True, slots=True)
class ShardRandomness(StepRandomness):
    """The randomness of a step, of whose noise a rank draws its own share and nobody else's."""

    layout: Layout

    def normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the numbers that one process would draw, those that fall on what this rank holds."""
        spans = [self.layout.places(name) for name in like]
        device = next((value.device for value in like.values()), torch.device("cpu"))
        shares = self.normals_between(purpose, spans, count=self.layout.count, device=device)
        return {name: share.view(like[name].shape) for name, share in zip(like, shares, strict=True)}


class Shards:
    """What one rank holds of a model, and what it does with the others.

    ``model`` gathers itself while it runs; ``held`` has the same names, with this rank's rows as its parameters, in the
    same memory: optimizer, averages and checkpoints work with it as with any model.
    """

    def __init__(self, model: nn.Module, engine: ShardedEngine, ranks: Ranks, device: torch.device) -> None:
        ranks.take_over([*model.parameters(), *model.buffers()])
        shapes = {name: value.shape for name, value in model.named_parameters()}
        trained = tuple(name for name, value in model.named_parameters() if value.requires_grad)
        self.model, self.ranks = model, ranks
        self.layout = Layout(shapes=shapes, trained=trained, number=ranks.number, total=ranks.total)
        self.held = _stand_in(model)
        _spread_out(model, device, total=ranks.total)
        engine.let_go(self.scattered)

    def bind(self) -> None:
        """Let ``held`` have the rows of this rank. The model must have run once: torch may move them until then."""
        held = dict(self.held.named_parameters())
        for name, value in self.model.named_parameters():
            local = value.detach().to_local()  # type: ignore[attr-defined]
            if tuple(local.shape) != self.layout.shape(name):
                raise InvalidValue("model", allowed=f"rows {self.layout.rows(name)} of {name} here", given=local.shape)
            held[name].data = local

    # Of every rank.

    def at(self, key: RunKey, step: int, attempt: int) -> ShardRandomness:
        """The randomness of one attempt at one step."""
        return ShardRandomness(key=key, step=step, attempt=attempt, layout=self.layout)

    def scattered(self, name: str, whole: Tensor) -> Tensor:
        """This rank's rows of the sum over all ranks. They are added in the order of the ranks, always."""
        if self.ranks.total == 1:
            return whole
        lengths = [whole[: len(self.layout.rows(name, rank))].numel() for rank in range(self.ranks.total)]
        own = lengths[self.ranks.number]
        found = whole.new_empty(self.ranks.total * own)
        dist.all_to_all_single(found, whole.reshape(-1), [own] * self.ranks.total, lengths)
        shares = found.view(self.ranks.total, own)
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        return total.reshape(self.layout.shape(name))

    @contextmanager
    def showing(self, trainee: Trainee) -> Iterator[nn.Module]:
        """The model with the weights that would be released now, to be run by all ranks at once."""
        before = {name: value.clone() for name, value in self.held.state_dict().items()}
        self.put(trainee.weights())
        try:
            with self.ranks.side_by_side(), evaluating(self.model), torch.no_grad():
                yield self.model
        finally:
            self.put(before)

    def put(self, weights: Mapping[str, Tensor]) -> None:
        """Let the model have these rows."""
        held = self.held.state_dict()
        with torch.no_grad():
            for name, value in weights.items():
                held[name].copy_(value)

    # Of rank 0.

    def order(self, randomness: StepRandomness, *, planned_step: int, sensitivity: float) -> None:
        """Let all begin with a step, which is charged; each scales the noise of its rows from this sensitivity."""
        at = {"step": randomness.step, "attempt": randomness.attempt}
        self.ranks.tell(STEP, **at, planned_step=planned_step, sensitivity=sensitivity)

    def refuse_divergence(self, step: int) -> None:
        """An error where a weight of another rank is no longer a number."""
        self.ranks.tell(FINITE)
        for rank, is_finite in self.ranks.answers():
            if not is_finite["finite"]:
                raise Diverged(diverged(f"a weight of rank {rank} is no longer finite", step))

    def gathered(self, tensors: Mapping[str, Tensor], *, what: str) -> dict[str, Tensor]:
        """The whole of tensors of which every rank has its share, on the CPU: all of one before the next."""
        self.ranks.tell(GATHER, what=what)
        with self.ranks.side_by_side():
            return {name: self._whole(name, value.detach().cpu()) for name, value in tensors.items()}

    def hand_out(self, found: Checkpoint) -> Checkpoint:
        """Give every rank its share of a checkpoint that is whole; this one's is returned."""
        for rank in self.ranks.others:
            with self.ranks.wire.unbroken(rank):
                self._hand_to(rank, self._share(found, rank))
        return self._share(found, 0)

    def _hand_to(self, rank: int, share: Checkpoint) -> None:
        kinds = {name: [kind(value), *value.shape] for name, value in share.tensors.items()}
        counts = {"step": share.step, "accepted": share.accepted, "attempt": share.attempt}
        self.ranks.wire.say(rank, {"kind": STATE, **counts, "numbers": dict(share.numbers), "tensors": kinds})
        for value in filter(Tensor.numel, share.tensors.values()):
            self.ranks.wire.send(rank, as_bytes(value))

    def _whole(self, name: str, own: Tensor) -> Tensor:
        owner = self.layout.owner(name, own)
        if owner is None:
            return own
        others = (self._received(rank, self.layout.shape(owner, rank), own.dtype) for rank in self.ranks.others)
        return torch.cat([own, *others])

    def _share(self, found: Checkpoint, rank: int) -> Checkpoint:
        tensors = {}
        for name, value in found.tensors.items():
            owner = self.layout.owner(name, value)
            rows = None if owner is None else self.layout.rows(owner, rank)
            tensors[name] = value if rows is None else value[rows.start : rows.stop]
        return replace(found, tensors=tensors)

    # Of the others.

    def state(self, told: Mapping[str, Any]) -> Checkpoint:
        """This rank's share of a checkpoint, after it was told that there is one."""
        tensors = {
            name: self._received(0, tuple(shape), getattr(torch, type_name))
            for name, (type_name, *shape) in told["tensors"].items()
        }
        counts = {name: told[name] for name in ("step", "accepted", "attempt")}
        return Checkpoint(**counts, numbers=told["numbers"], tensors=tensors)

    def give(self, tensors: Mapping[str, Tensor]) -> None:
        """Hand this rank's rows to rank 0, which writes them down."""
        with self.ranks.side_by_side():
            for name, value in tensors.items():
                if self.layout.owner(name, value) is not None and value.numel():
                    self.ranks.wire.send(0, as_bytes(value))

    def _received(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        like = torch.empty(shape, dtype=dtype)
        if not like.numel():
            return like
        packed = self.ranks.wire.receive(rank, like.numel() * like.element_size())
        return packed.cpu().view(dtype).view(shape)


def checkpoint_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under the names that they have in a checkpoint."""
    return {MODEL + name: value for name, value in weights.items()}


def _stand_in(model: nn.Module) -> nn.Module:
    """The model's layers over again, with its buffers, and with parameters that hold nothing yet."""
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for value in model.parameters():
        memo[id(value)] = nn.Parameter(value.detach().new_empty(0), value.requires_grad)
    return copy.deepcopy(model, memo)


def _spread_out(model: nn.Module, device: torch.device, *, total: int) -> None:
    """Let torch keep of each layer a rank's rows, and gather the rest while the layer runs: inner layers first."""
    # Only where it is asked for: it takes torch seconds to load this.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (total,))
    for layer in reversed(_gathered_at_once(model)):
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)


def _gathered_at_once(model: nn.Module) -> list[nn.Module]:
    """The layers that hold parameters, those that use their inner layers' weights as one; and the model itself."""
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
