"""Several processes train one model. Every process, called a rank, runs the same loop (SPMD).

    every rank   charge ─► the same draw ─► its share ─► clipped sum ─┐
    all ranks                                    sums added over ranks, in their order
    every rank   the same noise, or that of the rows it holds ─► update, in step with the others

Randomness is keyed, so every rank makes the same draw, in the same random order, and takes every n-th record of it.
Sums are added by collectives; weights are not sent during training. Only rank 0 reads and writes the run folder. It
broadcasts what it reads, and that a step is charged, before any rank draws. Values that must be bit-identical on all
ranks, such as scores and acceptance decisions, are computed by rank 0.

Small values are sent by gloo; sums by NCCL if the tensors are on GPUs. The proof is in ``run/private_run.proof.md``.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr.errors import InvalidValue, LehrError, RankLost
from lehr.interfaces import PrivateSum
from lehr.privacy.rng import RunKey

NUMBERS_AT_ONCE = 2**25  # largest part of a sum that is sent at once
_NETWORK = (
    "gloo",
    "nccl",
    "connection",
    "timed out",
    "broken pipe",
    "read error",
    "socket",
)  # words in torch's network errors
_T = TypeVar("_T")


class Ranks:
    """The ranks of a run: this one's ``number``, from 0, and their ``total``.

    ``group`` is a gloo group for this run only: when a rank closes it, the others fail at once. Sums are exchanged on
    ``device``: a GPU with NCCL, or the CPU.
    """

    def __init__(
        self, *, number: int = 0, total: int = 1, group: Any = None, device: torch.device | None = None
    ) -> None:
        self.number, self.total = number, total
        self._group, self._device = group, device or torch.device("cpu")
        self._failure = f"lehr/failure/{'' if group is None else group.group_name}"  # in the store of all ranks

    @property
    def is_rank_0(self) -> bool:
        """Whether this rank writes the run folder."""
        return self.number == 0

    # The share of a draw.

    def share_of(self, indices: Tensor) -> Tensor:
        """This rank's share of a draw. The shares of all ranks are disjoint, and together they are the draw.

        >>> [Ranks(number=number, total=2).share_of(torch.tensor([4, 9, 1, 5])).tolist() for number in range(2)]
        [[4, 1], [9, 5]]
        """
        return indices[self.number :: self.total]

    def largest_share(self, indices: Tensor) -> int:
        """The size of the largest share of a draw.

        >>> Ranks(number=0, total=2).largest_share(torch.tensor([4, 1, 5]))
        2
        """
        return -(-len(indices) // self.total)

    def purpose(self, name: str) -> str:
        """The name of this rank's random stream. No two ranks use the same numbers for augmentation or dropout."""
        return f"{name}, rank {self.number}" if self.number else name

    # Collectives: every rank calls the same ones in the same order.

    def from_rank_0(self, make: Callable[[], _T]) -> _T:
        """Broadcast the JSON value that ``make`` returns on rank 0. The other ranks do not call it."""
        if self.total == 1:
            return make()
        made = json.dumps(make()).encode() if self.is_rank_0 else b""
        found: _T = json.loads(self._broadcast_bytes(made))
        return found

    def gather(self, value: Any) -> list[Any]:
        """The JSON value of every rank, in their order, on every rank."""
        if self.total == 1:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.total)]
        with self._network_errors():
            dist.all_gather(sizes, torch.tensor([len(content)]), group=self._group)
            longest = max(int(size) for size in sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[: len(content)] = content
            found = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.total)]
            dist.all_gather(found, padded, group=self._group)
        return [json.loads(bytes(row[: int(size)].numpy())) for row, size in zip(found, sizes, strict=True)]

    def comparison_key(self) -> RunKey:
        """A fresh key that all ranks share, for hashes by which they compare settings and records."""
        return RunKey(bytes.fromhex(self.from_rank_0(lambda: RunKey.fresh().secret.hex())))

    def check_equal(self, values: Mapping[str, Any], *, allowed: str = "the same on every rank") -> None:
        """Raise ``InvalidValue`` on every rank if a value differs between ranks."""
        everyone = self.gather(dict(values))
        for name in values:
            for rank, of_rank in enumerate(everyone):
                if of_rank[name] != everyone[0][name]:
                    raise InvalidValue(name, allowed=allowed, given=f"others on rank {rank}")

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite these tensors with those of rank 0. Every rank has them in the same order."""
        for value in tensors if self.total > 1 else ():
            packed = as_bytes(value).cpu()  # a copy if it is not contiguous
            with self._network_errors():
                dist.broadcast(packed, src=0, group=self._group)
            with torch.no_grad():
                value.copy_(packed.view(value.dtype).view(value.shape))

    def reduce(self, private: PrivateSum) -> PrivateSum:
        """The sum over all ranks in float64, added in rank order, so that it is bit-identical on every rank."""
        if self.total == 1:
            return private
        self.check_same_sensitivity(private)
        flat = torch.cat([value.reshape(-1) for value in private.values.values()])
        found = torch.cat([self._reduced(part) for part in torch.split(flat, NUMBERS_AT_ONCE)])
        parts = found.split_with_sizes([value.numel() for value in private.values.values()])
        named = zip(parts, private.values.items(), strict=True)
        return replace(private, values={name: part.view(value.shape) for part, (name, value) in named})

    def check_same_sensitivity(self, private: PrivateSum) -> None:
        """Raise ``InvalidValue`` on every rank if sensitivities differ: the noise is scaled from one bound."""
        self.check_equal({"sensitivity": private.sensitivity}, allowed="clipped to the same bound on every rank")

    def reduce_scatter(self, flat: Tensor, lengths: Sequence[int]) -> Tensor:
        """This rank's part of the sum over all ranks, of ``lengths[number]`` numbers, added in rank order.

        ``dist.reduce_scatter`` does not specify the order, which may differ between machines.
        """
        own = lengths[self.number]
        found = torch.empty(self.total * own, dtype=flat.dtype, device=self._device)
        with self._network_errors():
            dist.all_to_all_single(found, flat.to(self._device), [own] * self.total, list(lengths), group=self._bulk)
        shares = found.view(self.total, own)
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        return total.to(flat.device)

    def gather_rows(self, own: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor | None:
        """On rank 0 the concatenated rows of all ranks, on the CPU; None on the others."""
        value = own.detach().cpu().contiguous()
        with self._network_errors():
            if not self.is_rank_0:
                if value.numel():
                    dist.send(as_bytes(value), dst=0, group=self._group)
                return None
            found = [value]
            for rank in range(1, self.total):
                rows = torch.empty(shapes[rank], dtype=value.dtype)
                if rows.numel():
                    dist.recv(as_bytes(rows), src=rank, group=self._group)
                found.append(rows)
        return torch.cat(found)

    def _reduced(self, flat: Tensor) -> Tensor:
        """An all_reduce in rank order: each rank adds one part, and all parts are gathered."""
        missing = -len(flat) % self.total
        padded = torch.cat([flat, flat.new_zeros(missing)])
        part = self.reduce_scatter(padded, [len(padded) // self.total] * self.total).to(self._device)
        whole = torch.empty(len(padded), dtype=flat.dtype, device=self._device)
        with self._network_errors():
            dist.all_gather(list(whole.chunk(self.total)), part, group=self._bulk)
        return whole[: len(flat)].to(flat.device)

    @property
    def _bulk(self) -> Any:
        """The group for sums: the default group, which has NCCL, if this rank's device is a GPU."""
        return self._group if self._device.type == "cpu" else None

    def _broadcast_bytes(self, content: bytes) -> bytes:
        size = torch.tensor([len(content)])
        with self._network_errors():
            dist.broadcast(size, src=0, group=self._group)
            packed = torch.zeros(int(size), dtype=torch.uint8)
            if self.is_rank_0:
                packed = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            dist.broadcast(packed, src=0, group=self._group)
        return bytes(packed.numpy())

    # The end of a run, and errors.

    @contextmanager
    def session(self) -> Iterator[None]:
        """If this rank fails, the others raise ``RankLost``, with the type of its error if that is known."""
        try:
            with self._network_errors():
                yield
        except BaseException as error:
            self.announce(error)
            raise
        finally:
            self._leave()

    def announce(self, error: BaseException) -> None:
        """Leave the others because of an error, whose type they raise."""
        if self.total > 1 and not isinstance(error, RankLost):
            with suppress(Exception):  # the store's process may be gone
                _store().set(self._failure, f"rank {self.number} stopped by {type(error).__name__}")
        self._leave()

    @contextmanager
    def _network_errors(self) -> Iterator[None]:
        """Turn network errors into ``RankLost``."""
        try:
            yield
        except LehrError:
            raise
        except (RuntimeError, ValueError) as error:
            words = str(error).lower()
            if self.total == 1 or not any(word in words for word in _NETWORK):
                raise
            how = "a rank did not answer in time" if "timed out" in words else "the connection to a rank is closed"
            found = f"{self._announced() or how}: the run stops; what is charged stays charged, and it can be resumed"
            raise RankLost(found) from error

    def _announced(self) -> str:
        """The type of a failed rank's error. Its message is not sent, because it may be about a record."""
        with suppress(Exception):
            if _store().check([self._failure]):
                return bytes(_store().get(self._failure)).decode()
        return ""

    def _leave(self) -> None:
        """Close this run's group, so that ranks that wait in it fail at once and not after a timeout."""
        if self._group is not None:
            with suppress(Exception):
                dist.destroy_process_group(self._group)
            self._group = None  # connections are closed with the last reference


ALONE = Ranks()


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def join_ranks() -> Ranks:
    """The ranks that torchrun, or the program's own ``torch.distributed`` set-up, has started.

    A collective: all ranks must call it. It makes a group for one run.
    """
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
        # Kept until the process ends: torchrun's store cannot be used for a second initialisation.
        atexit.register(_leave_all)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    has_nccl = "nccl" in dist.get_backend_config()
    device = device_of_rank(torch.device("cuda")) if has_nccl else torch.device("cpu")
    group = dist.new_group(backend="gloo", timeout=_timeout())
    ranks = Ranks(number=dist.get_rank(), total=dist.get_world_size(), group=group, device=device)
    ranks.gather(None)  # all ranks are connected before one of them can fail and close its connections
    return ranks


def _timeout() -> timedelta | None:
    """The timeout of the default group, or None for torch's default."""
    with suppress(Exception):
        world: Any = dist.group.WORLD
        found: timedelta = world._get_backend(torch.device("cpu")).options._timeout
        return found
    return None


def is_rank_0() -> bool:
    """Whether this process prints and writes for all ranks."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def device_of_rank(device: torch.device) -> torch.device:
    """The given device; for ``cuda`` without an index, the GPU of this local rank."""
    if str(device) != "cuda":
        return device
    found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())) % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that is already distributed: its gradients would be summed before they are clipped."""
    if isinstance(model, DistributedDataParallel):
        allowed = "the module itself, on every rank: Lehr distributes the records"
        raise InvalidValue("model", allowed=allowed, given="DistributedDataParallel")
    sharded = [name for name, value in model.named_parameters() if type(value).__name__ == "DTensor"]
    if sharded:
        allowed = "one with whole parameters; sharded=True shards them"
        raise InvalidValue("model", allowed=allowed, given=f"a sharded {sharded[0]}")


def layout_of(model: nn.Module) -> dict[str, object]:
    """Everything about a model, but its weights, that must be the same on every rank."""
    # Tensors are sent without names, and noise follows their order.
    layers = [[name, type(layer).__name__, layer.training] for name, layer in model.named_modules()]
    tensors = [*model.named_parameters(), *model.named_buffers()]
    shapes = [[name, type_name(value), list(value.shape), value.requires_grad] for name, value in tensors]
    return {"layers": layers, "shapes": shapes}


def fingerprint_of(tensors: Iterable[Tensor], key: RunKey) -> str:
    """A keyed hash of the tensors' values."""
    return key.fingerprint(part.cpu().numpy().data for part in map(as_bytes, tensors))


def type_name(value: Tensor) -> str:
    """The dtype without ``torch.``, such as ``float32``."""
    return str(value.dtype).removeprefix("torch.")


def as_bytes(value: Tensor) -> Tensor:
    """The values as a one-dimensional tensor of bytes."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def _leave_all() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
