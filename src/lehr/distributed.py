"""Several processes train one model: who draws, who sums, who adds the noise. A process is called a rank.

    rank 0   charge ─► draw ─► its share ─► sum of all shares ─► noise, once ─► weights, scores, ledger, checkpoints
    rank 1          ─► draw ─► its share ──┘
    rank 2          ─► draw ─► its share ──┘

Every rank holds all records and makes the same keyed draw, in the same random order, of which it takes every n-th of n
ranks, beginning with its own number. Rank 0 is the run: it alone charges, adds noise, updates, scores and writes. The
others keep nothing from step to step. They are given weights, clip rule and step, and give back a clipped sum. So every
method works on any number of ranks, and rank 0 charges a step before the others can know that there is one.

The processes find one another by ``torch.distributed``: gloo carries words, and sums of a CPU; NCCL those of GPUs. What
the guarantee rests on is in ``distributed.proof.md``.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr.errors import InvalidValue, RankLost
from lehr.interfaces import PrivateSum, SlotState
from lehr.rng import RunKey

BYTES_AT_ONCE = 2**28
CHECK_WEIGHTS_EVERY = 100  # orders
_COMPARE, _KEY, _ORDER, _OUTCOME, _STOP = "compare", "key", "order", "outcome", "stop"
_WORDS, _BULK = 0, 1  # tags: what is heard as words was never sent as a part of a sum, nor the other way round
# A rank that stops tells the others, who may not be listening, and wait for it elsewhere: it must not wait for them.
_FAREWELL = timedelta(seconds=5)
_STOPS = "The run stops; what is charged stays charged, and it can be resumed"
_NETWORK = ("gloo", "nccl", "connection", "timed out", "broken pipe")  # in what torch says of a rank that is gone


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the other ranks are told to sum. It is given after the step is charged."""

    step: int
    attempt: int
    clipping: SlotState
    is_raw: bool = False  # without a clip, which only a method asks for about which nothing is promised


class Wire:
    """Words and bytes between rank 0 and each of the others. Where one is gone, the error has its number."""

    def __init__(self, *, words: Any, bulk: Any, device: torch.device) -> None:
        self._words, self._bulk, self._device = words, bulk, device
        self.lost: set[int] = set()

    def say(self, rank: int, said: object, *, within: timedelta | None = None) -> None:
        """Send something that JSON can hold. Where that takes longer, gloo closes the connections to all ranks."""
        content = torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)
        with self._naming(rank):
            for part in (torch.tensor([len(content)]), content):
                _wait(dist.isend(part, dst=rank, group=self._words, tag=_WORDS), within)

    def hear(self, rank: int, *, within: timedelta | None = None) -> Any:
        """What a rank says."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._naming(rank):
            _wait(dist.irecv(size, src=rank, group=self._words, tag=_WORDS), within)
            content = torch.empty(int(size), dtype=torch.uint8)
            _wait(dist.irecv(content, src=rank, group=self._words, tag=_WORDS), within)
        return json.loads(bytes(content.numpy()))

    def send(self, rank: int, packed: Tensor) -> None:
        """Send bytes whose number the other knows."""
        with self.unbroken(rank):
            there = packed.to(self._device)
        with self._naming(rank):
            for part in torch.split(there, BYTES_AT_ONCE):
                dist.send(part, dst=rank, group=self._bulk, tag=_BULK)

    def receive(self, rank: int, size: int, *, within: timedelta | None = None) -> Tensor:
        """So many bytes from a rank."""
        packed = torch.empty(size, dtype=torch.uint8, device=self._device)
        with self._naming(rank):
            for part in torch.split(packed, BYTES_AT_ONCE):
                _wait(dist.irecv(part, src=rank, group=self._bulk, tag=_BULK), within)
        return packed

    def spread(self, value: Tensor) -> None:
        """Overwrite a tensor by that of rank 0."""
        packed = as_bytes(value)  # a copy where it does not lie in one row
        with self._naming(0):
            dist.broadcast(packed, src=0, group=self._words)
        with torch.no_grad():
            value.copy_(packed.view(value.dtype).view(value.shape))

    @contextmanager
    def unbroken(self, rank: int) -> Iterator[None]:
        """What belongs together. Where it is broken off, by Ctrl-C say, nothing more is said to that rank.

        It would take whatever comes next for the rest: gloo fills the beginning of a sum with shorter words, and leaves
        what was in memory in the rest of it. The rank learns that this process is gone when it is.
        """
        try:
            yield
        except BaseException:
            self.lost.add(rank)
            raise

    @contextmanager
    def _naming(self, rank: int) -> Iterator[None]:
        with self.unbroken(rank):
            try:
                yield
            except (RuntimeError, ValueError) as error:  # of a closed connection, or of one that was never made
                how = "it did not answer in time" if _is_timeout(error) else "its connection is closed"
                raise RankLost(f"rank {rank} is lost: {how}. {_STOPS}") from error


class Ranks:
    """This process among those of a run. ``number`` counts from 0; where ``total`` is 1, nobody else is there."""

    def __init__(self, *, number: int = 0, total: int = 1, wire: Wire | None = None) -> None:
        self.number, self.total, self._wire = number, total, wire
        self._owing: set[int] = set()  # ranks that were given an order, and have not given back their sum
        self._is_side_by_side = False
        self._orders = 0
        self._key: RunKey | None = None

    @property
    def others(self) -> range:
        """The ranks that rank 0 leads."""
        return range(1, self.total)

    @property
    def wire(self) -> Wire:
        assert self._wire is not None  # or nobody else were there
        return self._wire

    # Of every rank.

    def own(self, places: Tensor) -> Tensor:
        """The share of this rank in a draw. The shares of all ranks are the draw, and no two have a place in common.

        >>> [Ranks(number=number, total=2).own(torch.tensor([4, 9, 1, 5])).tolist() for number in range(2)]
        [[4, 1], [9, 5]]
        """
        return places[self.number :: self.total]

    def largest_share(self, places: Tensor) -> int:
        """The records of the rank that has most of a draw. Every rank can tell, for all make the same draw.

        >>> Ranks(number=0, total=2).largest_share(torch.tensor([4, 1, 5]))
        2
        """
        return -(-len(places) // self.total)

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """All ranks do the same here, and wait for one another: whoever is gone is noticed by all.

        Nobody listens to words meanwhile. What fails here therefore stops the others by the end of its process.
        """
        self._is_side_by_side = True
        try:
            yield
        except RuntimeError as error:
            if not any(word in str(error).lower() for word in _NETWORK):
                raise
            how = ": it did not answer in time" if _is_timeout(error) else ""
            raise RankLost(f"a rank is lost while all were at work{how}. {_STOPS}") from error
        self._is_side_by_side = False

    def take_over(self, tensors: Iterable[Tensor]) -> None:
        """Let tensors that all ranks have, of the same shapes and on the CPU, be those of rank 0."""
        if self.total > 1:
            for value in tensors:
                self.wire.spread(value)

    def purpose(self, name: str) -> str:
        """What the randomness of this rank's share is for: no two ranks augment, or drop, by the same numbers."""
        return f"{name}, rank {self.number}" if self.number else name

    # Of rank 0.

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Whatever ends rank 0 ends the others."""
        with _interrupts_noted():
            try:
                yield
            except BaseException as error:
                self._stop(type(error).__name__)
                raise

    def refuse_others_than(self, mine: Mapping[str, str], key: RunKey) -> None:
        """Refuse ranks that were given another run, before anything is spent. The key is for this alone."""
        self._say_to_all({"kind": _COMPARE, "secret": key.secret.hex()})
        for rank, found in list(self._heard_from_all()):  # all of them: what is not heard now would be heard later
            differing = [name for name, digest in mine.items() if found.get(name) != digest]
            if differing:
                allowed = "the same on every rank, in the same order"
                raise InvalidValue(differing[0], allowed=allowed, given=f"others on rank {rank}")

    def hand_out(self, key: RunKey) -> None:
        """Give the key of the run to the others, who keep it in memory alone."""
        if self.total == 1:
            return
        self._key = key
        on_gpu = key.cryptographic_on_gpu
        self._say_to_all({"kind": _KEY, "secret": key.secret.hex(), "cryptographic_on_gpu": on_gpu})

    def environment(self, mine: Mapping[str, str] | None, *, split: str) -> dict[str, str] | None:
        """All that a bit of the whole sum may depend on; none where one rank cannot promise to repeat itself."""
        if self.total == 1:
            return None if mine is None else dict(mine)
        found = []
        for rank, told in self._heard_from_all():
            if told["split"] != split:
                raise InvalidValue("data", allowed="split alike on every rank", given=f"others on rank {rank}")
            found.append(told["environment"])
        if mine is None or None in found:
            return None
        return {**mine, "ranks": f"{self.total}: {json.dumps(found, sort_keys=True)}"}

    def order(self, order: Order, model: nn.Module) -> None:
        """Let the others begin with their shares of a sum."""
        _raise_noted()
        if self.total == 1:
            return
        assert self._key is not None
        is_whole, is_checked = not self._orders, self._orders % CHECK_WEIGHTS_EVERY == 0
        tensors = {name: value for name, value in order.clipping.items() if isinstance(value, Tensor)}
        header = {
            "kind": _ORDER,
            "step": order.step,
            "attempt": order.attempt,
            "is_raw": order.is_raw,
            "numbers": {name: value for name, value in order.clipping.items() if name not in tensors},
            "tensors": {name: [kind(value), *value.shape] for name, value in tensors.items()},
            "is_whole": is_whole,
            "weights": fingerprint_of(model, self._key) if is_checked else None,
        }
        packed = _packed([*_sent(model, is_whole=is_whole), *tensors.values()])
        self._orders += 1
        for rank in self.others:
            with self.wire.unbroken(rank):
                self.wire.say(rank, header)
                self._owing.add(rank)
                self.wire.send(rank, packed)

    def shares(self, like: PrivateSum) -> Iterator[PrivateSum]:
        """The sums of the others, rank by rank, so that the order in which they are added is always the same."""
        for rank in self.others:
            with self.wire.unbroken(rank):
                told = self._heard(rank)
                values = self._values(rank, like, size=told["bytes"])
            self._owing.discard(rank)
            if told["sensitivity"] != like.sensitivity:
                allowed = f"clipped to {like.sensitivity} on every rank"
                raise InvalidValue("sum", allowed=allowed, given=f"{told['sensitivity']} on rank {rank}")
            yield replace(like, values=values)

    def finish(self, outcome: object, weights: Mapping[str, Tensor]) -> None:
        """Tell the others how it ended, and the weights at the end, unless each has its own share of them."""
        for rank in self.others:
            with self.wire.unbroken(rank):
                self.wire.say(rank, {"kind": _OUTCOME, "outcome": outcome})
                if weights:
                    self.wire.send(rank, _packed(weights.values()))

    def _stop(self, reason: str) -> None:
        """Tell those who are still there that it is over; a rank that is about to give back a sum is heard first."""
        for rank in self.others if not self._is_side_by_side else ():
            with suppress(RankLost, InvalidValue):
                if rank in self.wire.lost:
                    continue
                if rank in self._owing and "failed" not in (told := self.wire.hear(rank, within=_FAREWELL)):
                    self.wire.receive(rank, told["bytes"], within=_FAREWELL)
                self.wire.say(rank, {"kind": _STOP, "reason": reason}, within=_FAREWELL)

    def _values(self, rank: int, like: PrivateSum, *, size: int) -> dict[str, Tensor]:
        if size != (own := _bytes(like.values.values())):
            raise InvalidValue("sum", allowed=f"of {own} bytes on every rank", given=f"{size} on rank {rank}")
        packed = self.wire.receive(rank, size)
        return dict(zip(like.values, _unpacked(packed, like.values.values()), strict=True))

    def tell(self, kind: str, **words: object) -> None:
        """Let the others do something that all ranks do."""
        _raise_noted()
        self._say_to_all({"kind": kind, **words})

    def answers(self) -> Iterator[tuple[int, Any]]:
        """What each of the others says to it."""
        yield from self._heard_from_all()

    def _say_to_all(self, said: object) -> None:
        for rank in self.others:
            self.wire.say(rank, said)

    def _heard_from_all(self) -> Iterator[tuple[int, Any]]:
        yield from ((rank, self._heard(rank)) for rank in self.others)

    def _heard(self, rank: int) -> Any:
        told = self.wire.hear(rank)
        if "failed" in told:
            self.wire.lost.add(rank)
            raise RankLost(f"rank {rank} stopped by {told['failed']}, of which it tells itself: the run stops")
        return told

    # Of the others.

    @contextmanager
    def following(self) -> Iterator[None]:
        """What goes wrong here is told to rank 0, by its kind alone."""
        with _interrupts_noted():
            try:
                yield
            except RankLost:
                raise
            except BaseException as error:
                if self._is_side_by_side or 0 in self.wire.lost:
                    raise
                with suppress(RankLost):
                    self.wire.say(0, {"failed": type(error).__name__}, within=_FAREWELL)
                raise

    def comparing_key(self) -> RunKey:
        """The key that what this rank was given is compared by."""
        return RunKey(bytes.fromhex(self._told(_COMPARE)["secret"]))

    def key(self) -> RunKey:
        """The key of the run."""
        told = self._told(_KEY)
        self._key = RunKey(bytes.fromhex(told["secret"]), cryptographic_on_gpu=told["cryptographic_on_gpu"])
        return self._key

    def answer(self, said: object) -> None:
        """Tell rank 0."""
        self.wire.say(0, said)

    def next_order(self, model: nn.Module) -> Order | dict[str, Any]:
        """The next order, with the model as it is to be; or how the run ended."""
        told = self._told(_ORDER, _OUTCOME)
        if told["kind"] == _OUTCOME:
            outcome: dict[str, Any] = told["outcome"]
            return outcome
        device = next(model.parameters()).device
        state = [torch.empty(shape, dtype=getattr(torch, kind)) for kind, *shape in told["tensors"].values()]
        into = _sent(model, is_whole=told["is_whole"])
        found = _unpacked(self.wire.receive(0, _bytes([*into, *state])), [*into, *state])
        with torch.no_grad():
            for value in into:
                value.copy_(next(found))
        tensors = {name: value.to(device) for name, value in zip(told["tensors"], found, strict=True)}
        self._refuse_other_weights(model, told["weights"])
        clipping = {**told["numbers"], **tensors}
        return Order(step=told["step"], attempt=told["attempt"], clipping=clipping, is_raw=told["is_raw"])

    def give_back(self, private: PrivateSum) -> None:
        """Hand this rank's share to rank 0, which alone may release it."""
        packed = _packed(private.values.values())
        with self.wire.unbroken(0):
            self.answer({"sensitivity": private.sensitivity, "bytes": len(packed)})
            self.wire.send(0, packed)

    def final_weights(self, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights that the run ended with."""
        packed = self.wire.receive(0, _bytes(like.values()))
        return dict(zip(like, _unpacked(packed, like.values()), strict=True))

    def told(self, *expected: str) -> dict[str, Any]:
        """What rank 0 lets this one do next: one of these kinds, or how the run ended."""
        return self._told(*expected, _OUTCOME)

    def _told(self, *expected: str) -> dict[str, Any]:
        told: dict[str, Any] = self.wire.hear(0)
        _raise_noted()
        if told["kind"] not in expected:
            raise RankLost(f"rank 0 stopped by {told.get('reason', told['kind'])}, of which it tells itself")
        return told

    def _refuse_other_weights(self, model: nn.Module, expected: str | None) -> None:
        assert self._key is not None
        if expected is not None and fingerprint_of(model, self._key) != expected:
            raise RankLost(f"rank {self.number} has other weights than rank 0: the run stops")


ALONE = Ranks()


_noted = threading.Event()


@contextmanager
def _interrupts_noted() -> Iterator[None]:
    """Note Ctrl-C besides raising it, and raise it again before the next step if it was lost.

    It is lost where Python happens to be in the callback of a weak reference or in a destructor, as while it collects
    garbage: what is raised there is printed and dropped.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # whoever has a handler of their own decides what becomes of it
        return

    def note(number: int, frame: FrameType | None) -> None:
        _noted.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
        _raise_noted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _noted.clear()


def _raise_noted() -> None:
    if _noted.is_set():
        raise KeyboardInterrupt


def joined() -> Ranks:
    """The ranks that this process was started among: by torchrun, or by a program that set up ``torch.distributed``."""
    if not dist.is_available():
        return ALONE
    if not dist.is_initialized() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_nccl else "gloo")
        # Kept until the end: torchrun's store remembers the first meeting, and a second one would find its traces.
        atexit.register(_leave)
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ALONE
    return Ranks(number=dist.get_rank(), total=dist.get_world_size(), wire=_wire())


def is_first() -> bool:
    """Whether this process speaks for all."""
    return not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0


def device_of_rank(device: torch.device) -> torch.device:
    """The device that is asked for; of several GPUs, the one that torchrun has set apart for this process."""
    if str(device) != "cuda":
        return device
    found = torch.device("cuda", int(os.environ.get("LOCAL_RANK", dist.get_rank())) % torch.cuda.device_count())
    torch.cuda.set_device(found)
    return found


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse a model that another engine shares out: its sums are not those that are clipped and charged."""
    if isinstance(model, DistributedDataParallel):
        allowed = "the module itself, on every rank: gradients are shared out here, record by record"
        raise InvalidValue("model", allowed=allowed, given="DistributedDataParallel")
    sharded = [name for name, value in model.named_parameters() if type(value).__name__ == "DTensor"]
    if sharded:
        allowed = "one whose parameters are whole: with sharded=True they are sharded here, after they are tried"
        raise InvalidValue("model", allowed=allowed, given=f"a sharded {sharded[0]}")


def fingerprint_of(model: nn.Module, key: RunKey) -> str:
    """A keyed hash of all that a model holds."""
    tensors = _sent(model, is_whole=True)
    return key.fingerprint(part.cpu().numpy().data for part in map(as_bytes, tensors))


def _wire() -> Wire:
    """Words go by gloo; sums too, unless NCCL can carry them from one GPU to another."""
    backends = dist.get_backend_config()
    words = None if "gloo" in backends else dist.new_group(backend="gloo")
    if "nccl" in backends:
        return Wire(words=words, bulk=None, device=device_of_rank(torch.device("cuda")))
    return Wire(words=words, bulk=words, device=torch.device("cpu"))


def _wait(work: Any, within: timedelta | None) -> None:
    work.wait() if within is None else work.wait(within)


def _is_timeout(error: Exception) -> bool:
    return "imed out" in str(error)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _sent(model: nn.Module, *, is_whole: bool) -> list[Tensor]:
    """The tensors of a model that others must have: frozen ones do not change after the first order."""
    parameters = [value for value in model.parameters() if is_whole or value.requires_grad]
    return [*parameters, *model.buffers()]


def kind(value: Tensor) -> str:
    """Its type, in a word."""
    return str(value.dtype).removeprefix("torch.")


def as_bytes(value: Tensor) -> Tensor:
    """What it holds, as one row."""
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors)


def _packed(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat(list(map(as_bytes, tensors)))


def _unpacked(packed: Tensor, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors in a row of bytes, in the shapes, types and on the devices of those given."""
    given: Sequence[Tensor] = list(like)
    parts = packed.split_with_sizes([_bytes([value]) for value in given])
    for part, value in zip(parts, given, strict=True):
        yield part.clone().view(value.dtype).view(value.shape).to(value.device)
