"""The values of a pickle that is made of arrays of bytes, dicts, lists, texts and numbers, read without running it.

A pickle is a program, and to unpickle one is to run it. This reader walks its instructions with ``pickletools``, which
only decodes them, and carries out the few that put plain values together. Calls are not carried out at all: five names
are recognised, and stand for an array, for its type, and for bytes written as text. Whatever else a pickle asks for,
by name or by instruction, ends the reading.
"""

from __future__ import annotations

import io
import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lehr.errors import InvalidValue


@dataclass(frozen=True)
class _Name:
    """A name that the pickle refers to; never looked up."""

    module: str
    name: str


@dataclass
class _Array:
    """An array of bytes, empty until its state has been read."""

    values: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _ByteType:
    """The type of an array of bytes, the only one that is read."""


_RECONSTRUCT = {_Name("numpy.core.multiarray", "_reconstruct"), _Name("numpy._core.multiarray", "_reconstruct")}
_TYPE = _Name("numpy", "dtype")
_ARRAY = _Name("numpy", "ndarray")
_ENCODE = _Name("_codecs", "encode")
_NAMES = {*_RECONSTRUCT, _TYPE, _ARRAY, _ENCODE}


def loads(content: bytes | bytearray) -> object:
    """The value of a pickle. Texts of Python 2 are bytes here; anything but plain values raises ``InvalidValue``."""
    machine = _Machine()
    try:
        for instruction, argument, _ in pickletools.genops(io.BytesIO(content)):
            machine.carry_out(instruction.name, argument)
        return _plain(machine.stack.pop())
    except InvalidValue:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, RecursionError, DeprecationWarning) as error:
        raise InvalidValue("pickle", allowed="whole and well formed", given=str(error)) from error


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def carry_out(self, instruction: str, argument: Any) -> None:
        """One instruction of the pickle."""
        if instruction in _CONSTANTS:
            self.stack.append(_CONSTANTS[instruction](argument))
        elif instruction in _ACTIONS:
            _ACTIONS[instruction](self, argument)
        elif instruction not in _NOTHING_TO_DO:
            raise InvalidValue("pickle", allowed="plain values and arrays only", given=f"the instruction {instruction}")

    def mark(self, _: Any) -> None:
        self.marks.append(len(self.stack))

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def last(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise ValueError("it takes more values than it has made")
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def remember(self, place: int | None) -> None:
        self.memo[len(self.memo) if place is None else place] = self.stack[-1]

    def recall(self, place: int) -> None:
        self.stack.append(self.memo[place])

    def append(self, values: list[Any]) -> None:
        _expected(self.stack[-1], list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        _expected(self.stack[-1], dict).update(_paired(values))

    def name(self, module: Any, name: Any) -> None:
        wanted = _Name(_as_text(module), _as_text(name))
        if wanted not in _NAMES:
            raise InvalidValue("pickle", allowed="plain values and arrays only", given=f"{wanted.module}.{wanted.name}")
        self.stack.append(wanted)

    def build(self) -> None:
        state = self.stack.pop()
        built = self.stack[-1]
        if isinstance(built, _Array):
            built.values = _values(state)
        elif not isinstance(built, _ByteType):
            raise ValueError("it sets the state of a value that has none")


def _called(name: Any, arguments: Any) -> Any:
    """What a call of one of the known names would give."""
    match name, arguments:
        case _Name(), (kind, _, _) if name in _RECONSTRUCT and kind == _ARRAY:
            return _Array()
        case _Name(), (code, *_) if name == _TYPE and _as_text(code) in {"u1", "|u1", "uint8"}:
            return _ByteType()
        case _Name(), (str(text), encoding) if name == _ENCODE and _as_text(encoding) == "latin1":
            return text.encode("latin1")
    raise InvalidValue("pickle", allowed="arrays of bytes only", given=str(name))


def _values(state: Any) -> NDArray[np.uint8]:
    match state:
        case (_, tuple(shape), _ByteType(), bool() | 0 | 1 as by_column, bytes(numbers)) if _is_shape(shape):
            if math.prod(shape) != len(numbers):
                raise ValueError(f"an array of shape {shape} has {len(numbers)} bytes")
            return np.frombuffer(numbers, dtype=np.uint8).reshape(shape, order="F" if by_column else "C")
    raise ValueError("the state of an array is not one of bytes in rows")


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return all(type(length) is int and length >= 0 for length in shape)


def _plain(value: Any) -> object:
    """The value with arrays in the place of what stood for them, where it is an array or a dict of arrays.

    It goes no deeper: a pickle of a few lines can nest a list in itself, or in thousands of places at every level.
    """
    if isinstance(value, dict):
        return {key: _unwrapped(each) for key, each in value.items()}
    return _unwrapped(value)


def _unwrapped(value: Any) -> Any:
    return value.values if isinstance(value, _Array) else value


def _paired(values: list[Any]) -> dict[Any, Any]:
    return dict(zip(values[::2], values[1::2], strict=True))


def _expected(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {kind.__name__} is expected where a {type(value).__name__} is")
    return value


def _as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else _expected(value, str)


def _as_bytes(argument: str) -> bytes:
    """pickletools shows the bytes that Python 2 called strings as text, one letter for each."""
    return argument.encode("latin1")


def _as_it_is(argument: Any) -> Any:
    return argument


_NOTHING_TO_DO = {"PROTO", "FRAME", "STOP"}
_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "NONE": _as_it_is,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_DICT": lambda _: {},
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    **dict.fromkeys(("STRING", "BINSTRING", "SHORT_BINSTRING"), _as_bytes),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"), _as_it_is),
    **dict.fromkeys(("INT", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _as_it_is),
}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "APPEND": lambda machine, _: machine.append([*machine.last(1)]),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "DICT": lambda machine, _: machine.stack.append(_paired(machine.since_mark())),
    "LIST": lambda machine, _: machine.stack.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items([*machine.last(2)]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.stack.append(machine.last(1)),
    "TUPLE2": lambda machine, _: machine.stack.append(machine.last(2)),
    "TUPLE3": lambda machine, _: machine.stack.append(machine.last(3)),
    "GLOBAL": lambda machine, argument: machine.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine.name(*machine.last(2)),
    "REDUCE": lambda machine, _: machine.stack.append(_called(*machine.last(2))),
    "BUILD": lambda machine, _: machine.build(),
}
