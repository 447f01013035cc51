"""A proof that a computation keeps records apart: the record axis is followed through every operation that it runs.

The computation is run on fake tensors: they have shapes and types, and no values. For every operation a rule says where
the records are in its result, or that the result depends on several records; an operation without a rule counts as
mixing. Nothing is sampled: code that runs through without values runs the same operations on every batch of these
shapes. ``record_axis.proof.md`` has the argument and its premises.

    why_not_apart    what a caller asks: a reason, or None where records are proven to be kept apart
    Trace            one run of a computation: the state of every storage, and a log of the operations
    the rules        in ``record_axis_rules``

States are kept per storage and in bytes, so that views and writes in place need no rules: in a storage that holds
records, the byte at offset o belongs to record (o // step) % num_records.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from lehr.gradients.record_axis_rules import (
    BY_ELEMENT,
    DRAWS,
    FILLED,
    RULES,
    SHAPE_ONLY,
    UNDEFINED,
    Axis,
    Mixed,
    Mixes,
    Op,
    Public,
    Result,
    Signature,
    pointwise,
    tensors_in,
    without_rule,
)

_PRIMES = (5, 7, 11, 13, 17, 19, 23)  # numbers of records that are rarely the length of another axis
_MOST_VALUES = 2**16  # a public tensor with more elements is followed without its values
_MOST_FILLED = 2**12  # the same for one with one number everywhere, which hardly needs them
_MOST_READS = 3  # of truth values that depend on records: all combinations are run


@dataclass(frozen=True)
class Records:
    """Each element depends on one record at most: the one that its place in memory belongs to. ``step`` is in bytes."""

    step: int


State: TypeAlias = Records | Public | Mixed
Computation: TypeAlias = Callable[["Trace"], Iterable[tuple[str, Tensor]]]
References: TypeAlias = dict[tuple[int, tuple[bool, ...]], "Trace"]
_NOTHING_KNOWN = Public()


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
    trace.end()
    return trace


@dataclass(frozen=True)
class _Entry:
    """One operation in the log, by which two batch sizes are compared."""

    name: str
    where: str
    numbers: tuple[tuple[bool, Any], ...]  # whether it is a size, and the value
    tensors: tuple[tuple[tuple[int, ...], Axis | None, Tensor | None], ...]  # shape, record axis, values if public
    is_by_element: bool
    is_mixed: bool


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
        if isinstance(state, Public) or (isinstance(state, Mixed) and tensor.shape[0] % self.num_records):
            return None  # the latter is a summary beside the outputs of records
        with self._off():
            made = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        try:
            axis = self.axis(tensor)
        except Mixes as error:
            raise _NotProven(f"what it gives for one record depends on others: {error}") from error
        self._write(made, axis or Public(), "", is_fresh=True)
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
        try:
            axis = self.axis(tensor)
        except Mixes as error:
            raise _NotProven(f"what is read at {name} depends on several records: {error}") from error
        if tensor.dim() and tensor.shape[0] % self.num_records == 0:
            first = Axis(0, tensor.shape[0] // self.num_records)
            if not tensor.numel() or axis == first or self.is_same_for_all(tensor, first):
                return
        raise _NotProven(f"the record axis does not come first in what is read at {name}: {[*tensor.shape]}")

    def end(self) -> None:
        """Keep the log and the decisions alone, by which the run is compared with others.

        Weights, buffers and tensors beside the model outlive the batch: nothing of a record may be in them.
        """
        for address, name in self._given.items():
            if not isinstance(self._states[address], Public):
                raise _NotProven(f"numbers of the records are written into {name}")
        self._states.clear()
        self._given.clear()
        self._alive.clear()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.prim.device.default:  # most calls by far, and the fake mode takes long to answer
            return args[0].fake_device
        kwargs = dict(kwargs or {})
        if self._is_off or not Signature.of(func).gives_tensors:
            if func is torch.ops.aten._local_scalar_dense.default and not self._is_off:
                return self._read(args[0])
            return func(*args, **kwargs)  # what it asks of a fake tensor is no value
        op = Op(self, func, args, kwargs)
        states = [self.state(tensor) for tensor in op.inputs]
        if not op.signature.has_rule and not all(isinstance(state, Public) for state in states):
            with self:  # torch's own way to compute it by operations that may have rules
                out = decomposition_table.get(func, func.decompose)(*args, **kwargs)
            if out is not NotImplemented:
                return out
        with self._off():
            out = func(*args, **kwargs)
        op.outputs = tensors_in(out)
        addresses = {_address(tensor) for tensor in op.inputs}
        op.fresh = [tensor for tensor in op.outputs if _address(tensor) not in addresses]
        if op.fresh or op.written:
            if all(isinstance(state, Public) for state in states) and not self._spread(op):
                self._follow_public(op)
            else:
                self._follow(op, states)
        return out

    def _follow(self, op: Op, states: list[State]) -> None:
        mixed = next((state for state in states if isinstance(state, Mixed)), None)
        rule = RULES.get(op.kind) or (pointwise if op.signature.is_pointwise else without_rule)
        try:
            found = mixed if mixed is not None and op.kind not in SHAPE_ONLY else op.made or rule(op)
        except Mixes as error:
            found = Mixed(f"{op.name}{self.here()}: {error}")
        results = found if isinstance(found, list) else [found for _ in op.outputs]
        by_address = {_address(tensor): result for tensor, result in zip(op.outputs, results, strict=True)}
        for tensor in op.fresh:
            self._write(tensor, by_address[_address(tensor)], op.name, is_fresh=True)
        unknown = Mixed(f"{op.name}{self.here()}: it writes into one of its inputs")
        for tensor in op.written:
            self._write(tensor, by_address.get(_address(tensor), unknown), op.name, is_fresh=False)
        self._note(op)

    def _spread(self, op: Op) -> bool:
        """Whether something public has one part for each record, all of them equal or drawn independently.

        Such a tensor is followed as if it held records, so that what is done to each part by itself stays apart.
        """

        def axis(tensor: Tensor, fits: Callable[[int], bool]) -> Axis | None:
            dims = [dim for dim, size in enumerate(tensor.shape) if size and size % self.num_records == 0 and fits(dim)]
            return Axis(dims[0], tensor.shape[dims[0]] // self.num_records) if len(dims) == 1 else None

        found: list[Axis | None] = []
        is_made = op.signature.is_random and op.kind in DRAWS and len(op.fresh) == 1 and self._are_even(op)
        if is_made:
            found = [axis(op.fresh[0], lambda _: True)]
        elif not op.signature.is_random and any(self.values(tensor) is None for tensor in op.inputs):
            found = [axis(t, lambda dim, t=t: self._has_equal_parts(t, dim)) for t in op.inputs]  # type: ignore[misc]
            if op.kind == "repeat" and not any(found):
                is_made, found = True, [axis(op.fresh[0], lambda dim: op["repeats"][dim] % self.num_records == 0)]
        is_made, axes = self._decide((is_made, found) if any(found) else None) or (False, [])
        if not axes or len(axes) != len(found):
            return False
        if is_made:
            op.made = axes[0]
        else:
            op.spread = {id(tensor): own for tensor, own in zip(op.inputs, axes, strict=True) if own is not None}
        return True

    def _decide(self, found: Any) -> Any:
        """What the run at the other size decided at this point: lengths that are equal by chance do not decide."""
        if self._hints is not None:
            found = self._hints[len(self._decisions)] if len(self._decisions) < len(self._hints) else None
        self._decisions.append(found)
        return found

    def _follow_public(self, op: Op) -> None:
        most = _MOST_FILLED if op.kind in FILLED else _MOST_VALUES
        are_known = not op.signature.is_random and op.kind not in UNDEFINED
        are_known = are_known and all(self.values(tensor) is not None for tensor in op.inputs)
        are_few = sum(tensor.numel() for tensor in [*op.inputs, *op.fresh]) <= most
        if self._decide(are_known and are_few) and self._computed(op):
            return
        is_even = op.kind in UNDEFINED or op.kind in FILLED
        if op.kind in DRAWS if op.signature.is_random else op.signature.is_pointwise:
            is_even = self._are_even(op)
        for tensor in op.fresh:
            self._put(tensor, Public(is_even=is_even))
        for tensor in op.written:
            self._put(tensor, Public(is_even=is_even and _is_whole(tensor)))
        self._note(op)

    def _are_even(self, op: Op) -> bool:
        states = [(tensor, self.state(tensor)) for tensor in op.inputs]
        return all(tensor.numel() == 1 or (isinstance(state, Public) and state.is_even) for tensor, state in states)

    def _computed(self, op: Op) -> bool:
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
                found = tensors_in(op.func(*args, **kwargs))
            except (RuntimeError, NotImplementedError):
                return False
            for tensor, value in zip(op.outputs, found, strict=True):
                if any(tensor is one for one in op.fresh):  # the values of the whole storage
                    flat = torch.empty(tensor.untyped_storage().nbytes() // tensor.itemsize, dtype=tensor.dtype)
                    flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(value)
                    self._put(tensor, Public(values=flat, is_even=op.kind in FILLED))
        return True

    def state(self, tensor: Tensor) -> State:
        return self._states.get(_address(tensor), _NOTHING_KNOWN)

    def is_mixed(self, tensor: Tensor) -> bool:
        return isinstance(self.state(tensor), Mixed)

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
            raise Mixes(state.reason)
        if isinstance(state, Public) or not tensor.numel():
            return None
        found = self._axis(tensor, state.step)
        if found is None:
            raise Mixes("it is given some of the records, and not the whole batch")
        return found

    def _axis(self, tensor: Tensor, step: int) -> Axis | None:
        """The dimension along which a view steps from record to record, from the first to the last."""
        strides = [stride * tensor.itemsize for stride in tensor.stride()]
        period = step * self.num_records
        begin = tensor.storage_offset() * tensor.itemsize % period
        for dim, (stride, size) in enumerate(zip(strides, tensor.shape, strict=True)):
            if not stride or step % stride or size != step // stride * self.num_records:
                continue
            others = [
                (length - 1) * by
                for at, (by, length) in enumerate(zip(strides, tensor.shape, strict=True))
                if at != dim and by % period
            ]
            if begin + sum(others) + tensor.itemsize <= stride:
                return Axis(dim, step // stride)
        return None

    def is_same_for_all(self, tensor: Tensor, axis: Axis) -> bool:
        """Whether a public tensor is the same for every record, if the records are there."""
        state, size = self.state(tensor), tensor.shape[axis.dim]
        if not isinstance(state, Public):
            return False
        if not tensor.stride(axis.dim) or size == 1 or state.is_even:
            return True
        values = self.values(tensor)
        if values is None or size != self.num_records * axis.inner:
            return False
        with no_dispatch():
            split = values.reshape(
                *values.shape[: axis.dim], self.num_records, axis.inner, *values.shape[axis.dim + 1 :]
            )
            return bool((split == split.narrow(axis.dim, 0, 1)).all())

    def _has_equal_parts(self, tensor: Tensor, dim: int) -> bool:
        return self.is_same_for_all(tensor, Axis(dim, tensor.shape[dim] // self.num_records))

    def _put(self, tensor: Tensor, state: State) -> None:
        address = _address(tensor)
        if not isinstance(tensor, FakeTensor):
            self._given.setdefault(address, "a tensor that outlives the batch")
        self._states[address] = state
        self._alive.append(tensor.untyped_storage())

    def _write(self, tensor: Tensor, result: Result, name: str, *, is_fresh: bool) -> None:
        """The state of a result, or after a write in place, possibly into a part of a storage."""
        before: State = Public(is_even=True) if is_fresh else self.state(tensor)
        if isinstance(before, Mixed):
            return
        if isinstance(result, Axis) and tensor.numel():
            step = tensor.stride(result.dim) * tensor.itemsize * result.inner
            is_so = bool(step) and self._axis(tensor, step) == result
            if isinstance(before, Records):
                is_so = is_so and before.step == step
            else:
                is_so = is_so and (before.is_even or _is_whole(tensor))
            elsewhere = f"{name}{self.here()}: its records lie in memory in another way, or among others"
            self._put(tensor, Records(step) if is_so else Mixed(elsewhere))
        elif isinstance(result, Mixed) or is_fresh:
            self._put(tensor, Public() if isinstance(result, Axis) else result)
        elif isinstance(before, Public):
            self._put(tensor, Public())  # among records, a rule has seen to it that all of them get the same

    def _read(self, tensor: Tensor) -> Any:
        values, where = self.values(tensor), self.here()[4:] or "the computation"
        if values is not None:
            with no_dispatch():
                return values.item()
        if tensor.dtype is not torch.bool:
            raise _NotProven(f"{where} reads the value of a tensor")
        self.reads.append((not isinstance(self.state(tensor), Public), where))
        return len(self.reads) <= len(self._answers) and self._answers[len(self.reads) - 1]

    def _note(self, op: Op) -> None:
        def axis(tensor: Tensor) -> Axis | None:
            try:
                return op.axis(tensor) or op.checked.get(id(tensor))
            except Mixes:
                return None

        numbers = [
            (name in op.signature.sizes, leaf)
            for name, value in op.bound.items()
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, bool | int | float | complex)
        ]
        inputs = [(tuple(tensor.shape), axis(tensor), self.values(tensor)) for tensor in op.inputs]
        outputs = [(tuple(tensor.shape), axis(tensor), None) for tensor in op.outputs]
        by_element = op.signature.is_pointwise or op.kind in BY_ELEMENT or op.kind in SHAPE_ONLY
        entry = _Entry(
            name=op.name,
            where=self.here(),
            numbers=tuple(numbers),
            tensors=(*inputs, *outputs),
            is_by_element=by_element or not op.inputs,
            is_mixed=all(map(self.is_mixed, op.outputs)),
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
    if len(first.numbers) != len(second.numbers) or len(first.tensors) != len(second.tensors):
        return False
    for (is_size, one), (_, another) in zip(first.numbers, second.numbers, strict=True):
        if one != another and not (is_size and one * other == another * count) and one == one:
            return False
    for (shape, axis, values), (scaled, other_axis, other_values) in zip(first.tensors, second.tensors, strict=True):
        if axis != other_axis or len(shape) != len(scaled):
            return False
        for dim, (size, length) in enumerate(zip(shape, scaled, strict=True)):
            is_of_records = axis is not None and dim == axis.dim and size > 1
            is_right = length == size // count * other if is_of_records else size == length
            may_scale = axis is None and first.is_by_element and size % count == 0
            if not is_right and not (may_scale and length == size // count * other):
                return False
        if not _are_same_values(values, other_values, first.name):
            return False
    return True


def _are_same_values(first: Tensor | None, second: Tensor | None, name: str) -> bool:
    if first is None or second is None:
        return first is second
    with no_dispatch():
        if first.shape == second.shape:
            return torch.equal(first, second) or bool((first.isnan() & second.isnan() | (first == second)).all())
        if name.startswith("aten.index"):
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
    """Code that keeps something of a run in a layer must not find it there later."""
    held = [(layer, dict(vars(layer)), dict(layer._buffers)) for layer in model.modules()]
    try:
        yield
    finally:
        for layer, attributes, buffers in held:
            vars(layer).clear()
            vars(layer).update(attributes)
            layer._buffers.clear()
            layer._buffers.update(buffers)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_whole(tensor: Tensor) -> bool:
    """It fills its storage, each place once."""
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes() and 0 not in tensor.stride()
