"""A proof that a computation keeps records apart: the record axis is followed through every operation that it runs.

The computation is run on fake tensors: they have shapes and types, and no values. For every operation a rule says where
the records are in its result, or that the result depends on several records; an operation without a rule counts as
mixing. Nothing is sampled: code that runs through without values runs the same operations on every batch of these
shapes. ``record_axis.proof.md`` has the argument and its premises.

    why_not_apart    what a caller asks: a reason, or None where records are proven to be kept apart
    Trace            one run of a computation: the state of every storage, and a log of the operations
    the rules        one for each kind of operation, in the second half of the file

States are kept per storage and in bytes, so that views and writes in place need no rules: in a storage that holds
records, the byte at offset o belongs to record (o // step) % num_records.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

_PRIMES = (5, 7, 11, 13, 17, 19, 23)  # numbers of records that are rarely the length of another axis
_MOST_VALUES = 2**16  # a public tensor with more elements is followed without its values
_MOST_FILLED = 2**12  # the same for one with one number everywhere, which hardly needs them
_MOST_READS = 3  # of truth values that depend on records: all combinations are run


@dataclass(frozen=True)
class Axis:
    """Dimension ``dim`` of a tensor has outer * num_records * inner entries, with the records in the middle."""

    dim: int
    outer: int = 1
    inner: int = 1

    def at(self, dim: int) -> Axis:
        return Axis(dim, self.outer, self.inner)


@dataclass(frozen=True)
class Records:
    """Each element depends on one record at most: the one that its place in memory belongs to. ``step`` is in bytes."""

    step: int


@dataclass(frozen=True)
class Public:
    """Depends on no record.

    ``values`` are those of the whole storage, where they are known. ``is_even``: the same number everywhere, or
    independent draws from one distribution. ``repeats`` has pairs (step, times): the storage consists of blocks of
    ``step`` bytes, and ``times`` blocks in a row are equal.
    """

    values: Tensor | None = None
    is_even: bool = False
    repeats: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Mixed:
    """May depend on several records, or on their places in the batch."""

    reason: str


State: TypeAlias = Records | Public | Mixed
Result: TypeAlias = Axis | Mixed | Public  # of an operation
Computation: TypeAlias = Callable[["Trace"], Iterable[tuple[str, Tensor]]]
References: TypeAlias = dict[tuple[int, tuple[bool, ...]], "Trace"]


class _Mixes(Exception):
    """Raised by a rule: the result depends on several records."""


class _NotProven(Exception):
    """Ends a proof."""


def why_not_apart(
    compute: Computation,
    model: nn.Module,
    *,
    num_records: int,
    sizes: Iterable[int] = (),
    references: References | None = None,
) -> str | None:
    """Why records are not proven to be kept apart in batches of ``num_records``; None where they are.

    ``compute(trace)`` runs the computation on ``trace.num_records`` records, made by ``trace.records``, with weights
    and buffers from ``trace.public``. It returns every tensor that is read record by record, each with a name: there
    the records must come first. ``sizes`` are other lengths in the batch. ``references`` keeps the traces at the
    reference size from call to call, for the same computation on batches of the same shapes but for the number of
    records. The model's attributes are restored. A batch of one record is not compared with larger ones: there is
    nobody to mix it with.
    """
    sizes = list(sizes)
    taken = {num_records, *sizes}
    reference = next((prime for prime in _PRIMES if not any(size % prime == 0 for size in taken)), _PRIMES[-1])
    known = {} if references is None else references
    was_known = bool(known)
    try:
        with attributes_restored(model):
            _prove(compute, model, reference, num_records, known)
    except _NotProven as error:
        if not was_known:
            return str(error)
        known.clear()  # something that is not a tensor may have changed since: trace anew
        return why_not_apart(compute, model, num_records=num_records, sizes=sizes)
    return None


def _prove(compute: Computation, model: nn.Module, reference: int, num_records: int, references: References) -> None:
    """Along every path, where truth values are read that are not known: there is one for each way of answering."""
    waiting: list[tuple[bool, ...]] = [()]
    first: Trace | None = None
    for _ in range(2**_MOST_READS):
        answers = waiting.pop()
        if (reference, answers) not in references:
            references[reference, answers] = _run(compute, model, reference, answers)
        trace = references[reference, answers]
        given = (*answers, *(False for _ in trace.reads[len(answers) :]))
        if all(not is_private for is_private, _ in trace.reads) and len(given) > _MOST_READS:
            waiting += [] if answers else [(True,) * len(given)]  # drawn at random: none and all, as in layer dropout
        else:
            waiting += [(*given[:at], True) for at in range(len(answers), len(given))]
        if not trace.has_refused:
            depends = next((where for is_private, where in trace.reads if is_private), None)
            if first is not None and depends is not None and first.names != trace.names:
                raise _NotProven(f"{depends} runs other operations where values of the records are different")
            first = first or trace
            if num_records > 1:
                _refuse_difference(trace, _run(compute, model, num_records, given, hints=trace))
        if not waiting:
            break
    if waiting or first is None:
        raise _NotProven("what is run depends on values in too many ways")


def _run(
    compute: Computation, model: nn.Module, num_records: int, answers: Sequence[bool], hints: Trace | None = None
) -> Trace:
    trace = Trace(model, num_records, answers=answers, hints=hints)
    try:
        # An operation that does not fit is a reason here, and not an error that torch has to report.
        torchs_log = logging.getLogger("torch._subclasses.fake_tensor")
        with patch.object(torchs_log, "disabled", True), as_traced(), trace.fake, trace:
            results = list(compute(trace))
    except _NotProven:
        raise
    except Exception as error:
        if trace.reads and type(error) in (ValueError, AssertionError):
            trace.has_refused = True  # a check of the model's own: such a batch ends the run
            return trace
        # A shape or a branch that depends on values; or a model that cannot be run so. Fake tensors have no values, so
        # nothing in the message is of a record.
        why = (str(error).strip().splitlines() or [""])[0]
        raise _NotProven(f"it cannot be followed without values ({type(error).__name__}: {why[:160]})") from error
    for name, tensor in results:
        trace.refuse_unless_first(name, tensor)
    trace.refuse_written()
    trace.forget_tensors()
    return trace


@dataclass(frozen=True)
class _Entry:
    """One operation in the log, by which two batch sizes are compared."""

    name: str
    numbers: tuple[tuple[bool, Any], ...]  # whether it is a size, and the value
    shapes: tuple[tuple[int, ...], ...]
    axes: tuple[Axis | None, ...]
    values: tuple[Tensor | None, ...]
    is_by_element: bool
    is_mixed: bool
    where: str


class Trace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One run on fake tensors."""

    def __init__(
        self, model: nn.Module, num_records: int, *, answers: Sequence[bool] = (), hints: Trace | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_records = num_records
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.log: list[_Entry] = []
        self.reads: list[tuple[bool, str]] = []  # whether it depends on records, and where
        self.has_refused = False
        self._answers = answers
        self._hints = None if hints is None else hints._decisions
        self._decisions: list[Any] = []
        self._states: dict[int, State] = {}
        self._given: dict[int, str] = {}
        self._alive: list[Any] = []  # an address must not be used twice
        self._is_off = False
        self._paths = {
            id(layer): f"{path or 'the model itself'} ({type(layer).__name__})" for path, layer in model.named_modules()
        }

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self.log]

    def records(self, like: Tensor, *, rows: int | None = None) -> Tensor:
        """A tensor like this one behind the first axis, which holds the records of this run."""
        shape = (self.num_records if rows is None else rows, *like.shape[1:])
        with self._off():
            made = torch.empty(shape, dtype=like.dtype, device=like.device)
        self._put(made, Records(max(1, made.untyped_storage().nbytes() // self.num_records)))
        return made

    def like(self, tensor: Tensor) -> Tensor | None:
        """Numbers that belong to the same records as those of this tensor; None where it holds no records."""
        state = self.state(tensor)
        if isinstance(state, Public):
            return None
        if isinstance(state, Mixed):
            if tensor.shape[0] % self.num_records:
                return None  # a summary beside the outputs of records
            raise _NotProven(f"what it gives for one record depends on others: {state.reason}")
        with self._off():
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        try:
            axis = self.axis(tensor)
        except _Mixes as error:
            raise _NotProven(f"what it gives for one record depends on others: {error}") from error
        self._write_fresh(made, axis or Public(), "")
        return made

    def public(self, tensor: Tensor, name: str = "an input without a record axis") -> Tensor:
        """A weight, a buffer or an input that all records share, whatever its numbers are."""
        with self._off():
            made = self.fake.from_tensor(tensor.detach(), static_shapes=True)
        self._put(made, Public())
        self._given[_address(made)] = name
        return made

    def refuse_unless_first(self, name: str, tensor: Tensor) -> None:
        """The records must come first in this tensor, or it must be the same for all of them."""
        state = self.state(tensor)
        if isinstance(state, Mixed):
            raise _NotProven(f"what is read at {name} depends on several records: {state.reason}")
        if tensor.dim() and tensor.shape[0] % self.num_records == 0:
            first = Axis(0, 1, tensor.shape[0] // self.num_records)
            try:
                if not tensor.numel() or self.axis(tensor) == first or self.is_same_for_all(tensor, first):
                    return
            except _Mixes:
                pass
        raise _NotProven(f"the record axis does not come first in what is read at {name}: {[*tensor.shape]}")

    def refuse_written(self) -> None:
        """Weights, buffers and tensors beside the model outlive the batch: nothing of a record may be in them."""
        for address, name in self._given.items():
            if not isinstance(self._states[address], Public):
                raise _NotProven(f"numbers of the records are written into {name}")

    def forget_tensors(self) -> None:
        """Keep the log and the decisions alone, by which the run is compared with others."""
        self._states.clear()
        self._given.clear()
        self._alive.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:  # most calls by far, and the fake mode takes long to answer
            return args[0].fake_device
        kwargs = dict(kwargs or {})
        if self._is_off or not _Signature.of(func).gives_tensors:
            if func is torch.ops.aten._local_scalar_dense.default and not self._is_off:
                return self._read(args[0])
            return func(*args, **kwargs)  # what it asks of a fake tensor is no value
        op = _Op(self, func, args, kwargs)
        states = [self.state(tensor) for tensor in op.inputs]
        with self._off():
            out = func(*args, **kwargs)
        op.outputs = _tensors(out)
        addresses = {_address(tensor) for tensor in op.inputs}
        op.fresh = [tensor for tensor in op.outputs if _address(tensor) not in addresses]
        if op.fresh or op.written:
            self._follow(op, states)
        return out

    def _follow(self, op: _Op, states: list[State]) -> None:
        if all(isinstance(state, Public) for state in states) and not self._spread(op):
            self._follow_public(op)
            return
        results = self._results(op, states)
        by_address = {_address(tensor): result for tensor, result in zip(op.outputs, results, strict=True)}
        unknown = Mixed(f"{op.name}{self.here()}: it writes into one of its inputs")
        for tensor in op.fresh:
            self._write_fresh(tensor, by_address[_address(tensor)], op.name)
        for tensor in op.written:
            self._write_into(tensor, by_address.get(_address(tensor), unknown), op.name)
        self._note(op)

    def _results(self, op: _Op, states: list[State]) -> list[Result]:
        mixed = next((state for state in states if isinstance(state, Mixed)), None)
        if mixed is not None and op.kind not in _SHAPE_ONLY:
            return [mixed for _ in op.outputs]
        if op.drawn is not None:
            return [op.drawn]
        rule = _RULES.get(op.kind) or (_pointwise if op.is_pointwise else _without_rule)
        try:
            found = rule(op)
        except _Mixes as error:
            return [Mixed(f"{op.name}{self.here()}: {error}") for _ in op.outputs]
        return found if isinstance(found, list) else [found for _ in op.outputs]

    def _spread(self, op: _Op) -> bool:
        """Whether something public has one part for each record, all of them equal or drawn independently.

        Such a tensor is followed as if it held records, so that what is done to each part by itself stays apart.
        """
        is_drawn = op.is_random and op.kind in _DRAWS and len(op.fresh) == 1 and self._are_even(op)
        found: list[Axis | None] = []
        if is_drawn:
            found = [self._only_axis(op.fresh[0], lambda _: True)]
        elif not op.is_random and any(self.values(tensor) is None for tensor in op.inputs):
            fits = self.is_constant_along
            found = [self._only_axis(t, lambda dim, t=t: fits(t, dim - t.dim())) for t in op.inputs]  # type: ignore[misc]
        axes = self._decide(found if any(found) else None)
        if axes is None or len(axes) != len(found):
            return False
        if is_drawn:
            op.drawn = axes[0]
        op.spread = {id(tensor): axis for tensor, axis in zip(op.inputs, axes, strict=False) if axis is not None}
        return True

    def _only_axis(self, tensor: Tensor, fits: Callable[[int], bool]) -> Axis | None:
        dims = [dim for dim, size in enumerate(tensor.shape) if size and size % self.num_records == 0 and fits(dim)]
        return Axis(dims[0], 1, tensor.shape[dims[0]] // self.num_records) if len(dims) == 1 else None

    def _decide(self, found: Any) -> Any:
        """What the run at the other size decided at this point: lengths that are equal by chance do not decide."""
        if self._hints is not None:
            found = self._hints[len(self._decisions)] if len(self._decisions) < len(self._hints) else None
        self._decisions.append(found)
        return found

    def _follow_public(self, op: _Op) -> None:
        if self._decide(self._are_known(op)) and self._computed(op):
            return
        is_even = op.kind in _UNDEFINED or op.kind in _FILLED
        if op.kind in _DRAWS if op.is_random else op.is_pointwise:
            is_even = self._are_even(op)
        for tensor in op.fresh:
            self._put(tensor, Public(is_even=is_even, repeats=() if is_even else _repeats(op, tensor)))
        for tensor in op.written:
            self._put(tensor, Public(is_even=is_even and _is_whole(tensor)))
        self._note(op)

    def _are_even(self, op: _Op) -> bool:
        states = [(tensor, self.state(tensor)) for tensor in op.inputs]
        return all(tensor.numel() == 1 or (isinstance(state, Public) and state.is_even) for tensor, state in states)

    def _are_known(self, op: _Op) -> bool:
        if op.is_random or op.kind in _UNDEFINED or any(self.values(tensor) is None for tensor in op.inputs):
            return False
        most = _MOST_FILLED if op.kind in _FILLED else _MOST_VALUES
        return sum(tensor.numel() for tensor in [*op.inputs, *op.fresh]) <= most

    def _computed(self, op: _Op) -> bool:
        """Run it on the values of its inputs, which are public."""
        if any(self.values(tensor) is None for tensor in op.inputs):
            return False

        def real(value: Any) -> Any:
            if isinstance(value, Tensor):
                return self.values(value)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        args, kwargs = pytree.tree_map(real, (op.args, op.kwargs))
        with no_dispatch(), torch.no_grad():
            try:
                found = _tensors(op.func(*args, **kwargs))
            except (RuntimeError, NotImplementedError):
                return False
            for tensor, value in zip(op.outputs, found, strict=True):
                if any(tensor is one for one in op.fresh):
                    self._put(tensor, Public(values=_storage_of(tensor, value)))
        return True

    def state(self, tensor: Tensor) -> State:
        return self._states.get(_address(tensor), _NOTHING_KNOWN)

    def values(self, tensor: Tensor) -> Tensor | None:
        """The numbers of a public tensor, where they are known."""
        state = self.state(tensor)
        if isinstance(state, Public) and state.values is not None:
            with no_dispatch():
                flat = state.values if state.values.dtype is tensor.dtype else state.values.view(tensor.dtype)
                return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if state is not _NOTHING_KNOWN or isinstance(tensor, FakeTensor) or tensor.numel() > _MOST_VALUES:
            return None
        with no_dispatch():
            return tensor.detach().cpu()

    def axis(self, tensor: Tensor) -> Axis | None:
        """Where the records are; None in a public tensor."""
        state = self.state(tensor)
        if isinstance(state, Mixed):
            raise _Mixes(state.reason)
        if isinstance(state, Public) or not tensor.numel():
            return None
        found = self._axis(tensor, state.step)
        if found is None:
            raise _Mixes("it is given some of the records, and not the whole batch")
        return found

    def _axis(self, tensor: Tensor, step: int) -> Axis | None:
        """The dimension along which a view steps from record to record, from the first to the last."""
        strides = [stride * tensor.itemsize for stride in tensor.stride()]
        period = step * self.num_records
        begin = tensor.storage_offset() * tensor.itemsize % period
        for dim, (stride, size) in enumerate(zip(strides, tensor.shape, strict=True)):
            if not stride or step % stride or size % (step // stride * self.num_records):
                continue
            others = [
                (length - 1) * by
                for at, (by, length) in enumerate(zip(strides, tensor.shape, strict=True))
                if at != dim and by % period
            ]
            if begin + sum(others) + tensor.itemsize <= stride:
                inner = step // stride
                return Axis(dim, size // (inner * self.num_records), inner)
        return None

    def is_same_for_all(self, tensor: Tensor, axis: Axis) -> bool:
        """Whether a public tensor is the same for every record, if the records are there."""
        state = self.state(tensor)
        if not isinstance(state, Public):
            return False
        size, stride = tensor.shape[axis.dim], tensor.stride(axis.dim) * tensor.itemsize
        if not stride or size == 1 or state.is_even:
            return True
        if size != axis.outer * self.num_records * axis.inner:
            return False
        values = self.values(tensor)
        if values is not None:
            with no_dispatch():
                parts = (axis.outer, self.num_records, axis.inner)
                split = values.reshape(*values.shape[: axis.dim], *parts, *values.shape[axis.dim + 1 :])
                return bool((split == split.narrow(axis.dim + 1, 0, 1)).all())
        step = stride * axis.inner
        return _is_whole(tensor) and any(
            step % block == 0 and (block * times) % (step * self.num_records) == 0 for block, times in state.repeats
        )

    def is_constant_along(self, tensor: Tensor, dim: int) -> bool:
        """Whether a public tensor is the same everywhere along a dimension, counted from the end."""
        state = self.state(tensor)
        if -dim > tensor.dim() or tensor.shape[dim] == 1 or tensor.stride(dim) == 0:
            return True
        if isinstance(state, Public) and state.is_even:
            return True
        values = self.values(tensor)
        with no_dispatch():
            return values is not None and bool((values == values.narrow(dim, 0, 1)).all())

    def _put(self, tensor: Tensor, state: State) -> None:
        address = _address(tensor)
        if not isinstance(tensor, FakeTensor):
            self._given.setdefault(address, "a tensor that outlives the batch")
        self._states[address] = state
        self._alive.append(tensor.untyped_storage())

    def _write_fresh(self, tensor: Tensor, result: Result, name: str) -> None:
        if isinstance(result, Axis):
            step = tensor.stride(result.dim) * tensor.itemsize * result.inner
            is_so = tensor.numel() and step and self._axis(tensor, step) == result
            state: State = (
                Records(step) if is_so else Mixed(f"{name}{self.here()}: its result lies in memory in another way")
            )
            self._put(tensor, state if tensor.numel() else Public())
        else:
            self._put(tensor, result)

    def _write_into(self, tensor: Tensor, result: Result, name: str) -> None:
        """A write in place, possibly into a part of a storage."""
        state = self.state(tensor)
        if isinstance(state, Mixed):
            return
        if isinstance(result, Mixed):
            self._put(tensor, result)
            return
        if isinstance(result, Public):
            if isinstance(state, Public):
                self._put(tensor, Public())
            return  # a rule has seen to it that what is written is the same for all records
        elsewhere = Mixed(f"{name}{self.here()}: it writes records where others are, or into some of them")
        step = tensor.stride(result.dim) * tensor.itemsize * result.inner
        is_so = bool(step) and self._axis(tensor, step) == result
        if isinstance(state, Records):
            is_so = is_so and state.step == step
        else:
            is_so = is_so and (_is_whole(tensor) or self._is_whole_storage_even(tensor, state, step))
        self._put(tensor, Records(step) if is_so else elsewhere)

    def _is_whole_storage_even(self, tensor: Tensor, state: Public, step: int) -> bool:
        if state.is_even:
            return True
        count = tensor.untyped_storage().nbytes() // tensor.itemsize
        block = step // tensor.itemsize
        values = self.values(tensor)
        if values is None or state.values is None or step % tensor.itemsize or count % (block * self.num_records):
            return False
        with no_dispatch():
            flat = state.values.view(tensor.dtype).reshape(-1, self.num_records, block)
            return bool((flat == flat[:, :1]).all())

    def _read(self, tensor: Tensor) -> Any:
        values = self.values(tensor)
        if values is not None:
            with no_dispatch():
                return values.item()
        if tensor.dtype is not torch.bool:
            raise _NotProven(f"{self.here()[4:] or 'the computation'} reads the value of a tensor")
        self.reads.append((not isinstance(self.state(tensor), Public), self.here()[4:] or "the computation"))
        return len(self.reads) <= len(self._answers) and self._answers[len(self.reads) - 1]

    def _note(self, op: _Op) -> None:
        tensors = [*op.inputs, *op.outputs]
        numbers = [
            (name in op.sizes, leaf)
            for name, value in op.bound.items()
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, bool | int | float | complex)
        ]
        axes = []
        for tensor in tensors:
            try:
                axes.append(op.axis(tensor) or op.checked.get(id(tensor)))
            except _Mixes:
                axes.append(None)
        entry = _Entry(
            name=op.name,
            numbers=tuple(numbers),
            shapes=tuple(tuple(tensor.shape) for tensor in tensors),
            axes=tuple(axes),
            values=tuple(self.values(tensor) for tensor in op.inputs) + (None,) * len(op.outputs),
            is_by_element=op.is_pointwise or not op.inputs or op.kind in _BY_ELEMENT or op.kind in _SHAPE_ONLY,
            is_mixed=all(isinstance(self.state(tensor), Mixed) for tensor in op.outputs),
            where=self.here(),
        )
        self.log.append(entry)

    def here(self) -> str:
        """The layer that is running."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            path = self._paths.get(id(frame.f_locals.get("self"))) if "self" in frame.f_code.co_varnames else None
            if path is not None:
                return f" in {path}"
            frame = frame.f_back
        return ""

    @contextmanager
    def _off(self) -> Iterator[None]:
        before, self._is_off = self._is_off, True
        try:
            yield
        finally:
            self._is_off = before


_NOTHING_KNOWN = Public()


def _refuse_difference(proof: Trace, other: Trace) -> None:
    """At both sizes the same is run, and the number of records is nothing but the length of the record axis."""
    for first, second in zip(proof.log, other.log, strict=False):
        if first.name != second.name or not _is_scaled(first, second, proof.num_records, other.num_records):
            raise _NotProven(f"{first.name}{first.where} depends on how many records are in the batch")
    if len(proof.log) != len(other.log):
        raise _NotProven("what is run depends on how many records are in the batch")


def _is_scaled(first: _Entry, second: _Entry, count: int, other: int) -> bool:
    if first.is_mixed:
        return True  # nothing of it is read record by record
    if len(first.numbers) != len(second.numbers) or len(first.shapes) != len(second.shapes):
        return False
    for (is_size, one), (_, another) in zip(first.numbers, second.numbers, strict=True):
        if one != another and not (is_size and one * other == another * count) and one == one:
            return False
    if first.axes != second.axes:
        return False
    for shape, scaled, axis in zip(first.shapes, second.shapes, first.axes, strict=True):
        if len(shape) != len(scaled):
            return False
        for dim, (size, length) in enumerate(zip(shape, scaled, strict=True)):
            is_scaled = axis is not None and dim == axis.dim and size > 1
            is_right = length == size // count * other if is_scaled else size == length
            is_public = axis is None and first.is_by_element and size % count == 0 and length == size // count * other
            if not is_right and not is_public:
                return False
    pairs = zip(first.values, second.values, strict=True)
    return all(_are_same_values(one, another, first.name) for one, another in pairs)


def _are_same_values(first: Tensor | None, second: Tensor | None, name: str) -> bool:
    if first is None or second is None:
        return first is second
    with no_dispatch():
        if first.shape == second.shape:
            return torch.equal(first, second) or bool((first.isnan() & second.isnan() | (first == second)).all())
        if name.startswith(("aten.index", "aten._embedding_bag")):
            return True  # whose rule has seen that these are the places of the records
        for dim, (size, length) in enumerate(zip(first.shape, second.shape, strict=True)):
            if size != length:
                first, second = first.select(dim, 0).unsqueeze(dim), second.select(dim, 0).unsqueeze(dim)
        return torch.equal(first, second)


@contextmanager
def as_traced() -> Iterator[None]:
    """Run a model as when it is compiled: what is run is then what is proven.

    Libraries leave out what looks at values, such as whether a mask is full.
    """
    if torch.compiler.is_compiling():
        yield
        return
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = False


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """Code that keeps something of a run in a layer must not find a fake tensor there."""
    held = [(layer, dict(vars(layer)), dict(layer._buffers)) for layer in model.modules()]
    try:
        yield
    finally:
        for layer, attributes, buffers in held:
            vars(layer).clear()
            vars(layer).update(attributes)
            layer._buffers.clear()
            layer._buffers.update(buffers)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: Tensor) -> bool:
    """It fills its storage, each place once."""
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes() and 0 not in tensor.stride()


def _storage_of(tensor: Tensor, value: Tensor) -> Tensor:
    """The values of a whole storage, of which this is a dense tensor's."""
    flat = torch.empty(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=tensor.dtype)
    flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(value)
    return flat


def _repeats(op: _Op, out: Tensor) -> tuple[tuple[int, int], ...]:
    """Along which axes the result of an operation on public tensors is the same everywhere."""
    if op.kind == "repeat":
        times = [1] * (out.dim() - len(op["repeats"])) + list(op["repeats"])
        pairs = [
            (out.stride(dim) * out.itemsize * (out.shape[dim] // by), by) for dim, by in enumerate(times) if by > 1
        ]
        return tuple(pairs)
    if not op.is_pointwise:
        return ()
    return tuple(
        (out.stride(dim) * out.itemsize, size)
        for dim, size in enumerate(out.shape)
        if size > 1 and all(op.trace.is_constant_along(tensor, dim - out.dim()) for tensor in op.inputs)
    )


@dataclass(frozen=True)
class _Signature:
    """What is known of an operation before it is called."""

    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    writes: frozenset[str]
    sizes: frozenset[str]  # arguments that say how long an axis is; the shapes of the results show that they are right
    kind: str
    gives_tensors: bool
    is_pointwise: bool
    is_random: bool

    @staticmethod
    @cache
    def of(func: Any) -> _Signature:
        schema = func._schema
        namespace, _, name = schema.name.partition("::")
        kind = name if name.startswith("_") else name.removesuffix("_")  # in place or not
        kind = kind if namespace == "aten" else schema.name
        writes = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
        return _Signature(
            names=tuple(one.name for one in schema.arguments),
            defaults={one.name: one.default_value for one in schema.arguments if one.has_default_value()},
            # Where only the shape of a view is changed, nothing is written.
            writes=frozenset(() if torch.Tag.inplace_view in func.tags else writes),
            sizes=frozenset(one.name for one in schema.arguments if one.name in _SIZES and "int" in str(one.type)),
            kind=kind,
            gives_tensors=any("Tensor" in str(one.type) for one in schema.returns) or bool(writes),
            is_pointwise=torch.Tag.pointwise in func.tags or kind in _POINTWISE,
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
        )


class _Op:
    """One call of one operation, for its rule."""

    def __init__(self, trace: Trace, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = _Signature.of(func)
        self.trace, self.func, self.args, self.kwargs = trace, func, args, kwargs
        self.num_records = trace.num_records
        self.defaults, self.sizes, self.kind = known.defaults, known.sizes, known.kind
        self.is_pointwise, self.is_random = known.is_pointwise, known.is_random
        self.name = str(func)
        self.bound: dict[str, Any] = {**dict(zip(known.names, args, strict=False)), **kwargs}
        self.inputs = _tensors((args, kwargs))
        self.outputs: list[Tensor] = []
        self.fresh: list[Tensor] = []
        self.spread: dict[int, Axis] = {}
        self.drawn: Axis | None = None
        self.checked: dict[int, Axis] = {}  # public tensors that are the same for all records, if these are there
        is_evaluating = self["training"] is False or self["train"] is False  # then no statistics are written
        self.written = [] if is_evaluating else _tensors([self.bound.get(name) for name in known.writes])

    def __getitem__(self, name: str) -> Any:
        return self.bound[name] if name in self.bound else self.defaults.get(name)

    def axis(self, tensor: Tensor | None) -> Axis | None:
        if tensor is None:
            return None
        return self.spread[id(tensor)] if id(tensor) in self.spread else self.trace.axis(tensor)

    def only_public(self, *tensors: Tensor | None) -> None:
        if any(self.axis(tensor) is not None for tensor in tensors):
            raise _Mixes("it uses records where it takes something that all of them share")

    def agreed(self, tensors: Sequence[Tensor | None]) -> Axis:
        """The one axis of all of these, which have as many dimensions; what is public is the same for all records."""
        given = [tensor for tensor in tensors if tensor is not None]
        axes = {axis for axis in map(self.axis, given) if axis is not None}
        if len(axes) != 1:
            raise _Mixes("it brings records together from different axes" if axes else "no record axis")
        axis = next(iter(axes))
        for tensor in given:
            if self.axis(tensor) is None:
                self.check_same(tensor, axis)
        return axis

    def check_same(self, tensor: Tensor, axis: Axis) -> None:
        if axis.dim >= tensor.dim() or not self.trace.is_same_for_all(tensor, axis):
            raise _Mixes("it does something else to a record that is at another place of the batch")
        self.checked[id(tensor)] = axis


# The rules. Each returns where the records are in the results, or raises.


def _without_rule(op: _Op) -> Result:
    raise _Mixes("no rule says whether it keeps records apart")


def _pointwise(op: _Op) -> Result:
    """Element by element, with broadcasting."""
    rank = max(tensor.dim() for tensor in [*op.inputs, *op.outputs])
    axes = {axis.at(axis.dim + rank - t.dim()) for t in op.inputs if (axis := op.axis(t)) is not None}
    if len(axes) != 1:
        raise _Mixes("it brings records together from different axes")
    axis = next(iter(axes))
    for tensor in op.inputs:
        dim = axis.dim - rank + tensor.dim()
        if op.axis(tensor) is None and dim >= 0:
            op.check_same(tensor, axis.at(dim))
    return axis


def _only_shape(op: _Op) -> Result:
    """The numbers of the input are not used: what is made belongs to no record, and may be followed as if it did."""
    (tensor,) = op.inputs
    state = op.trace.state(tensor)
    if isinstance(state, Mixed) or op.outputs[0].shape != tensor.shape:
        return Public(is_even=True)
    return op.axis(tensor) or Public(is_even=True)


def _along(op: _Op) -> Result | list[Result]:
    """Works along some dimensions, and keeps or drops them."""
    tensors = op.inputs
    axis = op.agreed(tensors)
    rank = tensors[0].dim()
    dims = op["dims"] if op["dim"] is None else op["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        raise _Mixes("it works along all axes")
    along = {dim % rank for dim in dims}
    if axis.dim in along:
        raise _Mixes("it works along the record axis")
    dropped = sum(dim < axis.dim for dim in along)
    return [axis if out.dim() == rank else axis.at(axis.dim - dropped) for out in op.outputs]


def _on_last(count: int) -> Callable[[_Op], Result]:
    """Works on so many dimensions at the end, for each entry of the others."""

    def rule(op: _Op) -> Result:
        axis = op.agreed([tensor for tensor in op.inputs if tensor.dim()])
        if axis.dim >= max(tensor.dim() for tensor in op.inputs) - count:
            raise _Mixes("it works along the record axis")
        return axis

    return rule


def _first(*names: str, private: int = -1) -> Callable[[_Op], Result | list[Result]]:
    """Works on each entry of the first dimension: of these arguments; the others are shared by all records.

    The first ``private`` results have that dimension; later ones are sums over it.
    """

    def rule(op: _Op) -> Result | list[Result]:
        given = [op[name] for name in names]
        op.only_public(*_others(op, given))
        axis = op.agreed(given)
        if axis.dim:
            raise _Mixes("the record axis does not come first")
        size = next(tensor.shape[0] for tensor in given if tensor is not None)
        summed = Mixed(f"{op.name}: a sum over records")
        return [
            summed if 0 <= private <= at else axis if out.shape[:1] == (size,) else _small(op, out)
            for at, out in enumerate(op.outputs)
        ]

    return rule


def _small(op: _Op, out: Tensor) -> Result:
    """Seeds and offsets of random numbers; anything else is not known."""
    return Public() if not out.is_floating_point() else Mixed(f"{op.name}: no rule for this result")


def _others(op: _Op, given: Sequence[Tensor | None]) -> list[Tensor]:
    return [tensor for tensor in op.inputs if not any(tensor is one for one in given)]


def _product(one: str, other: str, out: str) -> Callable[[_Op], Result]:
    """A product of two tensors whose dimensions have these letters, and those of the result; a third may be added."""

    def rule(op: _Op) -> Result:
        pairs = (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"), ("mat", "vec"), ("self", "vec"))
        first, second = next((op[a], op[b]) for a, b in pairs if a in op.bound and b in op.bound)
        factors = ((first, one), (second, other))
        added = _others(op, (first, second))
        of_sums = [axis.at(axis.dim + len(out) - t.dim()) for t in added if (axis := op.axis(t)) is not None]
        axes = {_in_product(op, factors, out), *of_sums} - {None}
        if len(axes) != 1:
            raise _Mixes("it brings records together from different axes")
        axis = next(iter(axes))
        assert axis is not None
        for tensor in added:
            dim = axis.dim - len(out) + tensor.dim()
            if op.axis(tensor) is None and dim >= 0:
                op.check_same(tensor, axis.at(dim))
        return axis

    return rule


def _in_product(op: _Op, factors: Sequence[tuple[Tensor, str]], out: str) -> Axis | None:
    """Where the records of the factors are in their product."""
    axes = [(named[axis.dim], axis) for tensor, named in factors if (axis := op.axis(tensor)) is not None]
    if not axes:
        return None
    letter, axis = axes[0]
    if letter not in out:
        raise _Mixes("it sums over records")
    if any(other != letter or found.at(0) != axis.at(0) for other, found in axes):
        raise _Mixes("it brings records together from different axes")
    for tensor, named in factors:
        if letter in named and op.axis(tensor) is None:
            op.check_same(tensor, axis.at(named.index(letter)))
    return axis.at(out.index(letter))


def _convolution(op: _Op) -> Result:
    image, weight = op["input"], op["weight"]
    if op.axis(weight) is None:
        op.only_public(op["bias"])
        axis = op.agreed([image])
        if axis.dim:
            raise _Mixes("the record axis does not come first")
        return axis
    return _grouped(op, [(image, 1), (weight, 0), (op["bias"], 0)], op["groups"])


def _grouped(op: _Op, given: Sequence[tuple[Tensor | None, int]], groups: int) -> Result:
    """A convolution with weights of its own for each record, each of which is some of the groups."""
    for tensor, dim in given:
        if tensor is None:
            continue
        axis = op.axis(tensor)
        whole = Axis(dim, 1, tensor.shape[dim] // op.num_records)
        if axis is None:
            op.check_same(tensor, whole)
        elif axis != whole:
            raise _Mixes("the record axis is not that of the groups")
    if op["transposed"] or groups % op.num_records or op.outputs[0].shape[1] % op.num_records:
        raise _Mixes("the record axis is not that of the groups")
    return Axis(1, 1, op.outputs[0].shape[1] // op.num_records)


def _convolution_backward(op: _Op) -> list[Result]:
    grads, image, weight = op["grad_output"], op["input"], op["weight"]
    chosen = [at for at, is_wanted in enumerate(op["output_mask"]) if is_wanted]
    if op.axis(weight) is None and all(axis is None or axis.dim == 0 for axis in (op.axis(grads), op.axis(image))):
        axis = op.agreed([grads, image])
        return [axis if at == 0 else Mixed(f"{op.name}: a sum over records") for at in chosen]
    _grouped(op, [(grads, 1), (image, 1), (weight, 0)], op["groups"])
    return [
        Axis(1 if at == 0 else 0, 1, out.shape[1 if at == 0 else 0] // op.num_records)
        for at, out in zip(chosen, op.outputs, strict=True)
    ]


def _layer_norm(op: _Op) -> Result | list[Result]:
    tensors = [op[name] for name in ("input", "grad_out", "mean", "rstd") if op[name] is not None]
    op.only_public(*_others(op, tensors))
    axis = op.agreed(tensors)
    if axis.dim >= op["input"].dim() - len(op["normalized_shape"]):
        raise _Mixes("it works along the record axis")
    if "grad_out" not in op.bound:
        return axis
    given = op["input"].shape
    return [axis if out.shape == given else Mixed(f"{op.name}: a sum over records") for out in op.outputs]


def _batch_norm(op: _Op) -> list[Result]:
    """With statistics of the batch it works along all but the second dimension."""
    main = [op[name] for name in ("input", "grad_out", "grad_output") if op[name] is not None]
    is_training = bool(op["training"] or op["train"]) or "no_stats" in str(op.func)
    axis = op.agreed(main)
    if is_training and op["running_mean"] is not None and "backward" not in op.kind:
        for tensor in (op["running_mean"], op["running_var"]):
            op.trace._write_into(tensor, Mixed("statistics of the batch"), op.name)
    if axis.dim != (1 if is_training else 0):
        raise _Mixes("it works along the record axis")
    for tensor in _others(op, main):
        mine = op.axis(tensor)
        if axis.dim == 0:
            op.only_public(tensor)
        elif tensor.dim() == 1 and tensor.numel():
            if mine is None:
                op.check_same(tensor, axis.at(0))
            elif mine != axis.at(0):
                raise _Mixes("it brings records together from different axes")
    places: dict[Any, Result] = {main[0].shape[1:2]: axis.at(0)} if axis.dim == 1 else {}
    places |= {main[0].shape: axis, (0,): Public()}
    return [places.get(out.shape, Mixed(f"{op.name}: a sum over records")) for out in op.outputs]


def _embedding(op: _Op) -> Result:
    op.only_public(op["weight"])
    return op.agreed([op["indices"]])


def _embedding_bag(op: _Op) -> list[Result]:
    """Bags of one length, which never hold words of two records."""
    op.only_public(op["weight"])
    axis = op.agreed([op["indices"], op["per_sample_weights"]])
    offsets = op.trace.values(op["offsets"])
    count, bags = op["indices"].shape[0], op["offsets"].shape[0]
    length = count // max(1, bags)
    with no_dispatch():
        is_even = offsets is not None and torch.equal(offsets, torch.arange(0, count, length, dtype=offsets.dtype))
    if not is_even or axis.inner % length:
        raise _Mixes("bags that may hold words of several records")
    op.checked[id(op["offsets"])] = of_bags = Axis(0, axis.outer, axis.inner // length)
    return [
        of_bags if out.shape[:1] == (bags,) else axis if out.shape[:1] == (count,) else Public() for out in op.outputs
    ]


def _attention(op: _Op) -> Result | list[Result]:
    """Heads stand on the second axis: neither that nor the first is mixed."""
    names = ("query", "key", "value", "attn_mask", "attn_bias", "grad_out", "grad_out_", "out", "logsumexp")
    given = [op[name] for name in names if isinstance(op[name], Tensor) and op[name].numel()]
    axes = {axis for axis in map(op.axis, given) if axis is not None}
    if len(axes) != 1 or next(iter(axes)).dim:
        raise _Mixes("the record axis does not come first")
    axis = next(iter(axes))
    for tensor in given:
        if op.axis(tensor) is None and tensor.dim() == 4 and tensor.shape[0] != 1:
            op.check_same(tensor, axis)
    size = axis.outer * op.num_records * axis.inner
    return [axis if out.dim() > 1 and out.shape[0] == size else _small(op, out) for out in op.outputs]


def _nll_loss(op: _Op) -> Result | list[Result]:
    if op["reduction"] != 0:
        raise _Mixes("it sums over records")
    op.only_public(op["weight"])
    given = [op[name] for name in ("self", "target", "grad_output") if op[name] is not None]
    axis = op.agreed(given)
    if axis.dim:
        raise _Mixes("the record axis does not come first")
    # The total weight is not used where nothing is averaged.
    return [axis if out.dim() else Public() for out in op.outputs]


def _loss(op: _Op) -> Result:
    if op["reduction"] != 0:
        raise _Mixes("it sums over records")
    return _pointwise(op)


def _gather(op: _Op) -> Result:
    """Along one dimension, the entries that an index names; or writes there, or adds."""
    dim, index = op["dim"] % max(1, op["self"].dim()), op["index"]
    given, source = op["self"], op["src"]
    if op.axis(given) is None and source is None and op.axis(index) is not None:
        axis = op.agreed([index])
        if axis.dim != dim:
            op.check_same(given, axis)
        return axis
    axis = op.agreed([given, index, source])
    if axis.dim == dim:
        raise _Mixes("it works along the record axis")
    if any(tensor is not None and tensor.shape[axis.dim] != given.shape[axis.dim] for tensor in (index, source)):
        raise _Mixes("it takes some of the records")
    return axis


def _index_select(op: _Op) -> Result:
    dim = op["dim"] % op["self"].dim()
    of_index, axis = op.axis(op["index"]), op.axis(op["self"])
    source = op["source"]
    if of_index is not None:
        if axis is not None or source is not None:
            raise _Mixes("records choose among records")
        return of_index.at(dim)
    axis = op.agreed([op["self"], source])
    if axis.dim == dim:
        raise _Mixes("it works along the record axis")
    return axis


def _index(op: _Op) -> Result:
    """Entries that several indices name together; or writes there, or adds."""
    given, values = op["self"], op["values"]
    indices = [*op["indices"], *(None for _ in range(given.dim() - len(op["indices"])))]
    if any(index is not None and index.dtype is torch.bool for index in indices):
        raise _Mixes("it takes as many as a mask says")
    axis = op.axis(given)
    if values is None:
        return _indexed(op, indices, axis)
    places = [axis] if axis is not None else _possible(op, given)
    for place in places:
        try:
            result = _indexed(op, indices, place)
            rank = given.dim() + max(i.dim() for i in indices if i is not None) - sum(i is not None for i in indices)
            dim, mine = result.dim - rank + values.dim(), op.axis(values)
            if mine is None and dim >= 0:
                op.check_same(values, result.at(dim))
            if mine is None or mine == result.at(dim):
                return place
        except _Mixes:
            continue
    raise _Mixes("it writes records among others")


def _possible(op: _Op, given: Tensor) -> list[Axis]:
    """Where records may be written into a public tensor: it must be the same for all of them before."""
    found = []
    for dim, size in enumerate(given.shape):
        rest = size // op.num_records
        choices = {Axis(dim, 1, rest), Axis(dim, rest, 1)} if size and size % op.num_records == 0 else set()
        found += [axis for axis in choices if op.trace.is_same_for_all(given, axis)]
    return found


def _indexed(op: _Op, indices: Sequence[Tensor | None], axis: Axis | None) -> Axis:
    """Where records are in what is named by indices, of a tensor that has them there."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    rank = max(index.dim() for index in chosen)
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    axes = {found.at(found.dim + rank - index.dim()) for index in chosen if (found := op.axis(index)) is not None}
    if len(axes) > 1:
        raise _Mixes("it brings records together from different axes")
    if axis is None:
        (found,) = axes
        return found.at(first + found.dim)
    if axis.dim not in places:
        if axes:
            raise _Mixes("records choose among records")
        return axis.at(axis.dim - sum(place < axis.dim for place in places) + (rank if first < axis.dim else 0))
    index = indices[axis.dim]
    assert index is not None
    lead = _position(op, index, axis, rank)
    if any(found != axis.at(lead) for found in axes):
        raise _Mixes("records choose among records")
    return axis.at(first + lead)


def _position(op: _Op, index: Tensor, axis: Axis, rank: int) -> int:
    """The dimension along which an index counts 0, 1, 2, ..., so that every record meets itself."""
    values = op.trace.values(index)
    size = axis.outer * op.num_records * axis.inner
    if values is not None:
        with no_dispatch():
            for dim in range(values.dim()):
                shape = [1] * values.dim()
                shape[dim] = -1
                if values.shape[dim] == size and bool((values == torch.arange(size).reshape(shape)).all()):
                    return dim + rank - values.dim()
    raise _Mixes("it takes records in another order, or some of them")


def _cat(op: _Op) -> Result:
    tensors = [tensor for tensor in op["tensors"] if tensor.dim() != 1 or tensor.numel()]
    rank = tensors[0].dim() + (op.kind == "stack")
    dim = op["dim"] % rank
    axes = [op.axis(tensor) for tensor in tensors]
    if op.kind == "stack":
        axis = op.agreed(tensors)
        return axis.at(axis.dim + (dim <= axis.dim))
    if any(axis is not None and axis.dim == dim for axis in axes):
        if None in axes or len({(axis.dim, axis.inner) for axis in axes if axis is not None}) > 1:
            raise _Mixes("it puts something else among the records")
        found = [axis for axis in axes if axis is not None]
        return Axis(dim, sum(axis.outer for axis in found), found[0].inner)
    return op.agreed(tensors)


def _repeat(op: _Op) -> Result:
    tensor = op["self"]
    axis = op.agreed([tensor])
    new = len(op["repeats"]) - tensor.dim()
    times = op["repeats"][axis.dim + new]
    return Axis(axis.dim + new, axis.outer * times, axis.inner)


def _along_some(name: str, dims: Callable[[_Op], set[int]]) -> Callable[[_Op], Result]:
    """Works along these dimensions of the argument, and keeps them."""

    def rule(op: _Op) -> Result:
        axis = op.agreed([op[name]])
        if axis.dim in dims(op):
            raise _Mixes("it works along the record axis")
        return axis

    return rule


def _slice_backward(op: _Op) -> Result:
    """Puts a slice where it was taken from, among zeros."""
    axis = op.agreed([op["grad_output"]])
    dim = op["dim"] % len(op["input_sizes"])
    if op.kind == "select_backward":
        return axis.at(axis.dim + (dim <= axis.dim))
    if dim != axis.dim:
        return axis
    block = op.num_records * axis.inner
    if op["step"] != 1 or op["start"] % block or op["input_sizes"][dim] % block:
        raise _Mixes("it works along the record axis")
    return Axis(dim, op["input_sizes"][dim] // block, axis.inner)


def _same_memory_order(op: _Op) -> Result:
    """A copy in another shape: what is k-th stays k-th."""
    tensor, out = op.inputs[0], op.outputs[0]
    axis = op.agreed([tensor])
    lead = axis.outer * prod(tensor.shape[: axis.dim])
    trail = tensor.numel() // (lead * op.num_records)
    before = 1
    for dim, size in enumerate(out.shape):
        after = out.numel() // (before * size)
        if lead % before == 0 and trail % after == 0 and lead // before * op.num_records * (trail // after) == size:
            return Axis(dim, lead // before, trail // after)
        before *= size
    raise _Mixes("records and other axes are folded together")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Element by element, though torch does not say so.
_POINTWISE = _names(
    "_to_copy copy masked_fill native_dropout native_dropout_backward _fused_dropout bernoulli dropout where rsub "
    "clone rrelu_with_noise hardtanh_backward elu_backward leaky_relu_backward softplus_backward hardswish_backward "
    "mish_backward log_sigmoid_forward log_sigmoid_backward hardsigmoid_backward hardshrink_backward "
    "softshrink_backward threshold_backward _prelu_kernel fill zero isclose complex polar celu selu normal uniform "
    "exponential random hardswish mish gelu _prelu_kernel_backward"
)
# Independent draws from one distribution.
_DRAWS = _names("rand randn randint rand_like randn_like randint_like bernoulli uniform normal random exponential")
_SIZES = _names(
    "size sizes shape output_size input_size input_sizes self_size start end length repeats N groups split_size "
    "split_sizes stride storage_offset"
)
_UNDEFINED = _names("empty empty_like empty_strided new_empty new_empty_strided empty_permuted")
_FILLED = _names("zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like")
_SHAPE_ONLY = _names(
    "empty_like new_empty new_empty_strided new_zeros new_ones new_full zeros_like ones_like full_like rand_like "
    "randn_like randint_like"
)
_BY_ELEMENT = _names("repeat cat stack index index_put")  # their rules look at every place of a public tensor

_TABLE: tuple[tuple[Callable[[_Op], Result | list[Result]], str], ...] = (
    (
        _along,
        "sum mean amax amin max min prod any all argmax argmin var std var_mean std_mean logsumexp linalg_vector_norm "
        "norm nansum count_nonzero median nanmedian kthvalue mode aminmax _softmax _log_softmax _safe_softmax softmax "
        "log_softmax cumsum cumprod cummax cummin logcumsumexp sort argsort topk flip roll glu glu_backward "
        "_softmax_backward_data _log_softmax_backward_data",
    ),
    (
        _on_last(1),
        "upsample_nearest1d upsample_linear1d reflection_pad1d reflection_pad1d_backward replication_pad1d "
        "replication_pad1d_backward avg_pool1d multinomial",
    ),
    (
        _on_last(2),
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa reflection_pad2d "
        "reflection_pad2d_backward replication_pad2d replication_pad2d_backward tril triu",
    ),
    (
        _on_last(3),
        "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d "
        "_adaptive_avg_pool3d_backward upsample_nearest3d upsample_trilinear3d pixel_shuffle pixel_unshuffle "
        "reflection_pad3d replication_pad3d",
    ),
    (
        _first("grad_output"),
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "upsample_trilinear3d_backward",
    ),
    (_product("mk", "kn", "mn"), "mm addmm _addmm_activation"),
    (_product("bmk", "bkn", "bmn"), "bmm baddbmm"),
    (_product("mk", "k", "m"), "mv addmv"),
    (_convolution, "convolution"),
    (_convolution_backward, "convolution_backward"),
    (_layer_norm, "native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward"),
    (_first("input"), "native_group_norm"),
    (_first("grad_out", "input", "mean", "rstd", private=1), "native_group_norm_backward"),
    (
        _batch_norm,
        "native_batch_norm native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training "
        "cudnn_batch_norm cudnn_batch_norm_backward",
    ),
    (_embedding, "embedding"),
    (_embedding_bag, "_embedding_bag _embedding_bag_forward_only"),
    (_first("self"), "im2col col2im channel_shuffle"),
    (_first("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    (_first("grad_output", "input", "grid"), "grid_sampler_2d_backward grid_sampler_3d_backward"),
    (_first("theta"), "affine_grid_generator"),
    (
        _attention,
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    ),
    (_nll_loss, "nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward"),
    (
        _loss,
        "mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward "
        "binary_cross_entropy binary_cross_entropy_backward soft_margin_loss soft_margin_loss_backward "
        "binary_cross_entropy_with_logits",
    ),
    (_gather, "gather scatter scatter_add scatter_reduce"),
    (_index_select, "index_select index_add index_copy"),
    (_index, "index index_put _unsafe_index _unsafe_index_put _index_put_impl"),
    (_cat, "cat stack"),
    (_repeat, "repeat"),
    (
        _along_some("self", lambda op: {op["self"].dim() - 1 - at // 2 for at, more in enumerate(op["pad"]) if more}),
        "constant_pad_nd",
    ),
    (_slice_backward, "slice_backward select_backward"),
    (_along_some("grad_in", lambda op: {op["dim"] % len(op["input_sizes"])}), "unfold_backward"),
    (_same_memory_order, "_unsafe_view view reshape view_copy"),
    (
        _along_some("self", lambda op: {dim % op["self"].dim() for dim in op["dim"]}),
        "_fft_r2c _fft_c2c _fft_c2r",
    ),
)
_RULES = {
    **dict.fromkeys(_POINTWISE, _pointwise),
    **dict.fromkeys(_SHAPE_ONLY, _only_shape),
    **{name: rule for rule, names in _TABLE for name in _names(names)},
}
