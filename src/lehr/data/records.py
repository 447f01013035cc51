"""Records: in memory or on disk, checked before training, and compared by content.

- ``RecordSet``: what a run needs of its records; ``InMemory`` holds them as tensors, ``StreamedFolder`` leaves them on
  disk (``image_folder``)
- ``read_records``: records of arrays, tables, dictionaries and data loaders
- ``take_column``: a column that is no input, such as the owners of records
- ``read_dataset``: records of any map-style data set, of torch or of Hugging Face
- ``check_trainable``, ``check_count``: whether they can be trained on
- ``overlap``, ``is_mostly_in``, ``sketch``: whether two sets share records
"""

from __future__ import annotations

import hashlib
import heapq
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from lehr import validate
from lehr.errors import BadRecord, InvalidValue
from lehr.interfaces import Inputs, Records, moved

MAX_COUNT_RATIO = 3  # enough for a rounded number, and for the halves of a cross-validation
_CHUNK = 4096
_SKETCH_SIZE = 256  # also the records compared of a folder on disk: reading all would take longer than many a run

TARGET_NAMES = ("label", "labels")  # columns of targets, if the user names none

Bytes = bytes | memoryview


class RecordSet(Records, Protocol):
    """Records with inputs and one tensor for the target."""

    @property
    def kind(self) -> object:
        """What ``contents`` are bytes of. Records of two kinds are never compared."""

    def at(self, indices: Tensor) -> Self:
        """Return the records at these indices."""

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        """Return the same records, on a device as far as they are in memory."""

    def contents(self) -> Iterator[Bytes]:
        """Yield bytes that identify the input of each record, in order."""

    def identity(self, role: str) -> Iterator[Bytes]:
        """Yield all that distinguishes these records, in this role, from others: hashed with a key, a fingerprint."""

    def sample(self, count: int) -> Self:
        """Return ``count`` records spread over the set where reading all is slow, or all."""

    def possible_duplicates(self, other: Any) -> Self:
        """Return the records that may also be in ``other``, as far as that is known without reading them."""


@dataclass(frozen=True, eq=False, repr=False)
class InMemory:
    """The inputs and the targets of all records; all tensors begin with the record axis.

    ``inputs`` is one tensor, or a tuple or dictionary of tensors for a model with several inputs.

    >>> import torch
    >>> records = InMemory(torch.zeros(4, 1, 2, 2), torch.arange(4))
    >>> records.batch(torch.tensor([2, 0]))[1].tolist()
    [2, 0]
    """

    inputs: Any
    targets: Tensor

    def __post_init__(self) -> None:
        parts = pytree.tree_leaves(self.inputs) if isinstance(self.inputs, tuple | dict) else [self.inputs]
        for name, values in (("inputs", parts), ("targets", [self.targets])):
            for given in values or [None]:
                if not isinstance(given, Tensor) or given.ndim == 0:
                    raise InvalidValue(name, allowed="a tensor that begins with the record axis", given=type(given))
        num_targets = len(self.targets)
        for num_inputs in map(len, parts):
            if num_inputs != num_targets:
                reason = f"there are {num_inputs} inputs and {num_targets} targets"
                raise BadRecord(min(num_inputs, num_targets), reason=reason)

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        # Neither the values nor their number: both are private where the records are.
        words = ", ".join(f"{name}{leaf.dtype} {tuple(leaf.shape[1:])}" for name, leaf in self._leaves())
        return f"InMemory(inputs {words}, on {self._leaves()[0][1].device})"

    def _leaves(self) -> list[tuple[str, Tensor]]:
        """The tensors of the inputs with their names, in an order that does not depend on that of a dictionary."""
        if isinstance(self.inputs, dict):
            return [(f"{name} ", self.inputs[name]) for name in sorted(self.inputs)]
        return [("", leaf) for leaf in pytree.tree_leaves(self.inputs)]

    def batch(self, indices_B: Tensor) -> tuple[Any, Tensor]:
        """Return inputs and targets of the records at these indices."""

        there = moved(indices_B, self.targets.device)

        def rows(leaf: Tensor) -> Tensor:
            return leaf.index_select(0, there if leaf.device == there.device else indices_B.to(leaf.device))

        return pytree.tree_map(rows, self.inputs), rows(self.targets)

    def at(self, indices: Tensor) -> Self:
        """Return the records at these indices."""
        return type(self)(*self.batch(indices))

    def to(self, device: torch.device | str, *, targets_only: bool = False) -> Self:
        """Return the same records on a device."""
        inputs = self.inputs if targets_only else pytree.tree_map(lambda leaf: leaf.to(device), self.inputs)
        return type(self)(inputs, self.targets.to(device))

    @property
    def kind(self) -> object:
        """Dtype and shape: records are compared as they are stored."""
        kinds = tuple((name, leaf.dtype, tuple(leaf.shape[1:])) for name, leaf in self._leaves())
        return kinds if len(kinds) > 1 else kinds[0][1:]

    def contents(self) -> Iterator[Bytes]:
        """Yield the bytes of every record's input, in order."""
        parts = [input_bytes(leaf) for _, leaf in self._leaves()]
        return parts[0] if len(parts) == 1 else (b"".join(record) for record in zip(*parts, strict=True))

    def identity(self, role: str) -> Iterator[Bytes]:
        """Yield everything: dtypes, shapes and all bytes."""
        for name, tensor in (*self._leaves(), ("", self.targets)):
            yield f"{role} {name}{tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data

    def sample(self, count: int) -> Self:
        """Return all: they are in memory."""
        return self

    def possible_duplicates(self, other: Any) -> Self:
        """Return all."""
        return self


def input_bytes(all_inputs: Tensor) -> Iterator[memoryview]:
    """Yield the bytes of every record's input, in order. Labels do not enter."""
    for first in range(0, len(all_inputs), _CHUNK):
        inputs = all_inputs[first : first + _CHUNK].detach().cpu()
        if inputs.is_floating_point():
            inputs = inputs + 0.0  # -0.0 becomes 0.0: equal numbers have equal bytes
        whole: memoryview = inputs.contiguous().reshape(-1).view(torch.uint8).numpy().data
        length = len(whole) // len(inputs)
        yield from (whole[index * length : (index + 1) * length] for index in range(len(inputs)))


def check_trainable(records: Records, *, num_classes: int | None) -> None:
    """Raise ``BadRecord`` for the first record that cannot be trained on.

    An input must be finite and a label a whole number below ``num_classes``; with None, targets are any finite numbers.
    The error names the record, so it is for the owner of the data and not public.
    """
    if num_classes is not None:
        validate.count(num_classes=num_classes)
    if len(records) == 0:
        raise BadRecord(0, reason="there are no records")
    for indices in torch.split(torch.arange(len(records)), _CHUNK):
        inputs, labels = records.batch(indices)
        parts = [*(("input", leaf) for leaf in pytree.tree_leaves(inputs)), ("target", labels)]
        for name, values in parts:
            if values.is_floating_point() or values.is_complex():
                _refuse(~torch.isfinite(values), values, indices, f"its {name} holds {{}}")
        if num_classes is not None:
            is_label = (labels >= 0) & (labels < num_classes) & (labels == labels.to(torch.int64))
            way = "; for a regression, omit num_classes" if labels.is_floating_point() else ""
            reason = f"its label is {{}}, not a whole number from 0 to {num_classes - 1}{way}"
            _refuse(~is_label, labels, indices, reason)


def _refuse(is_bad: Tensor, values: Tensor, indices: Tensor, reason: str) -> None:
    if bool(is_bad.any()):
        first = tuple(torch.nonzero(is_bad)[0].tolist())
        raise BadRecord(int(indices[first[0]]), reason=reason.format(values[first].item()))


def check_count(*, stated: int, held: int, of: str = "records") -> None:
    """Refuse a stated number of records, or of users, that is off by more than ``MAX_COUNT_RATIO``.

    Batches would be as many times too small or too large. The number held is private and not in the error.
    """
    if not held <= MAX_COUNT_RATIO * stated <= MAX_COUNT_RATIO**2 * held:
        raise InvalidValue(of, allowed=f"within a factor of {MAX_COUNT_RATIO} of their number", given=stated)


def overlap(one: RecordSet, other: RecordSet) -> tuple[int, ...]:
    """Return the indices in ``other`` of the records whose input is also in ``one``.

    Records are compared as they are stored, so both sets must be of one kind. All files of streamed folders are read
    that may be equal.
    """
    if one.kind != other.kind:
        raise InvalidValue("other", allowed=f"records of {one.kind}, as the first are", given=other.kind)
    seen = set(_digests(one.possible_duplicates(other)))
    return tuple(index for index, digest in enumerate(_digests(other)) if digest in seen)


def is_mostly_in(part: RecordSet, whole: RecordSet) -> bool:
    """Return whether more than half of the records are in another set, judged by a sample of a streamed folder.

    Sets of different kinds count as disjoint.
    """
    if part.kind != whole.kind:
        return False
    sample = part.sample(_SKETCH_SIZE)
    return 2 * len(overlap(whole, sample)) > len(sample)


def sketch(records: RecordSet) -> frozenset[bytes]:
    """Return the smallest hashes of the inputs: two sets share about the same fraction of these as of records."""
    return frozenset(heapq.nsmallest(_SKETCH_SIZE, set(_digests(records.sample(_SKETCH_SIZE)))))


def _digests(records: RecordSet) -> Iterator[bytes]:
    return (hashlib.blake2b(content, digest_size=16).digest() for content in records.contents())


# Reading.


def read_records(data: Any, *, name: str = "data", target: str | None = None) -> InMemory:
    """Return the records of whatever holds them in memory, or item by item.

    - a pair of inputs and targets: tensors, arrays, pandas frames; inputs may be a tuple or a dictionary of them
    - a table with a column of targets, ``target``: a pandas frame, or a dictionary of tensors or arrays
    - a map-style data set, of torch or of Hugging Face, or a ``DataLoader`` over one

    The columns of a frame become one input. The columns of a dictionary become one input each, by name.
    """
    table: Any = data
    match data:
        case InMemory():
            return data
        case DataLoader():
            return read_records(_dataset_of(data, name), name=name, target=target)
        case tuple() if len(data) == 2:
            inputs, targets = data
            parts = inputs if isinstance(inputs, tuple | dict) else [inputs]
            read = [_array(part, name) for part in (parts.values() if isinstance(parts, dict) else parts)]
            if isinstance(inputs, dict):
                return InMemory(dict(zip(inputs, read, strict=True)), _array(targets, name))
            return InMemory(tuple(read) if isinstance(inputs, tuple) else read[0], _array(targets, name))
        case _ if hasattr(data, "iloc") and hasattr(data, "columns"):  # a pandas frame
            column = _target_name(list(table.columns), target, name)
            return InMemory(_array(table.drop(columns=[column]), name), _array(table[column], name))
        case Mapping():
            if any(hasattr(value, "column_names") for value in data.values()):
                raise InvalidValue(name, allowed="one of its splits, such as data['train']", given=sorted(data))
            column = _target_name(list(data), target, name)
            others = {key: _array(value, name) for key, value in data.items() if key != column}
            return InMemory(_one_or_all(others), _array(data[column], name))
        case _ if hasattr(data, "__getitem__") and not isinstance(
            data, str | bytes | tuple | list | np.ndarray | Tensor
        ):
            return read_dataset(data, name=name, target=target)
        case IterableDataset():
            return read_dataset(data, name=name)  # which refuses it
    allowed = "a data set, its name, a pair of inputs and targets, a table with a target, or a streamed folder"
    raise InvalidValue(name, allowed=allowed, given=type(data).__name__)


def take_column(data: Any, column: str) -> tuple[Any, Any]:
    """Return the data without a column, and the column: of a table, or of the inputs in a pair.

    It may be of text, which ``read_records`` refuses.
    """
    match data:
        case DataLoader():
            return take_column(_dataset_of(data, "data"), column)
        case tuple() if len(data) == 2 and (isinstance(data[0], Mapping) or hasattr(data[0], "columns")):
            inputs, found = take_column(data[0], column)
            return (inputs, data[1]), found
    columns = getattr(data, "column_names", None) or getattr(data, "columns", None)
    columns = list(data) if isinstance(data, Mapping) else columns
    if columns is None or column not in list(columns):
        allowed = "ids, one for each record, or a column of data" + ("" if columns is None else f": {list(columns)}")
        raise InvalidValue("owners", allowed=allowed, given=column)
    if isinstance(data, Mapping):
        return {key: value for key, value in data.items() if key != column}, data[column]
    if hasattr(data, "iloc"):
        return data.drop(columns=[column]), data[column].to_numpy()
    return data.remove_columns([column]), data[column]  # of Hugging Face


def _dataset_of(loader: DataLoader[Any], name: str) -> object:
    """The data set of a loader. Lehr draws its own batches, so all else of the loader is ignored."""
    if loader.collate_fn is not default_collate and loader.batch_size is not None:
        allowed = "a data set whose items are ready for the model, instead of a loader with its own collate_fn"
        raise InvalidValue(name, allowed=allowed, given="DataLoader")
    warnings.warn(
        f"{name} is a DataLoader: its data set is used, and its batch size, shuffling and sampler are ignored. "
        "Lehr draws Poisson samples with an expected size of batch_size",
        stacklevel=2,
    )
    return loader.dataset


def _target_name(columns: list[Any], target: str | None, name: str) -> Any:
    known = [column for column in columns if column in TARGET_NAMES]
    if target is None and len(known) == 1:
        return known[0]
    if target not in columns:
        raise InvalidValue("target", allowed=f"the column of {name} that is the target: {columns}", given=target)
    if len(columns) == 1:
        raise InvalidValue(name, allowed="a table with other columns than the target", given=columns)
    return target


def _one_or_all(inputs: dict[Any, Tensor]) -> Inputs:
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs


def _array(values: Any, name: str) -> Tensor:
    """A tensor of an array, of a frame or of a list of numbers. Errors have no values: they are records."""
    if isinstance(values, Tensor):
        return values
    if hasattr(values, "iloc"):  # of pandas
        columns = [values[column] for column in values.columns] if hasattr(values, "columns") else [values]
        for column in columns:
            if column.dtype.kind not in "biuf":
                allowed = "numbers: encode it with a list of values that you know without the records"
                raise InvalidValue(f"column {column.name!r} of {name}", allowed=allowed, given=str(column.dtype))
        is_whole = columns == [values] and values.dtype.kind in "biu" and not values.hasnans  # labels stay whole
        array = values.to_numpy(dtype=np.int64) if is_whole else values.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        try:
            array = np.asarray(values)
        except ValueError:  # rows of different lengths
            array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        allowed = "arrays of numbers, one row per record and all of one shape"
        raise InvalidValue(name, allowed=allowed, given=f"{type(values).__name__} of {array.dtype}")
    array = array if array.flags.writeable and array.flags.c_contiguous else array.copy()
    return torch.from_numpy(array)


def read_dataset(dataset: Any, *, name: str = "dataset", target: str | None = None) -> InMemory:
    """Return all records of a map-style data set.

    Its items are tuples that end with the target, or dictionaries with a key ``target``. Each part is a tensor, an
    array, a number or a Pillow image, which becomes bytes of shape CHW. Items are read once: random transforms are
    applied once and for all.
    """
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return InMemory(*dataset.tensors)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InvalidValue(name, allowed="map-style: sampling fetches records by index", given=type(dataset))
    records: list[tuple[list[Tensor], Any]] = []
    for index in range(len(dataset)):
        try:
            item = dataset[index]
            read = _pair(item, target, name)
        except InvalidValue:
            raise
        except Exception as error:  # the data set is the user's own code
            reason = f"it is not a pair of tensors, numbers or images: {type(error).__name__}: {error}"
            raise BadRecord(index, reason=reason) from error
        records.append(pytree.tree_flatten(read))
        if records[-1][1] != records[0][1]:
            raise BadRecord(index, reason="its parts are not those of the first record")
        for given, first in zip(records[-1][0], records[0][0], strict=True):
            if given.shape != first.shape:
                shapes = f"it is of shape {tuple(given.shape)}, others are of {tuple(first.shape)}"
                raise BadRecord(index, reason=shapes)
    if not records:
        raise BadRecord(0, reason="there are no records")
    columns = [torch.stack(column) for column in zip(*(leaves for leaves, _ in records), strict=True)]
    return InMemory(*pytree.tree_unflatten(columns, records[0][1]))


def _pair(item: Any, target: str | None, name: str) -> tuple[Any, Tensor]:
    """The inputs and the target of an item."""
    if isinstance(item, Mapping):
        column = _target_name(list(item), target, name)
        for key, value in item.items():
            if isinstance(value, str):
                allowed = "numbers: tokenise or encode it, or remove it"
                raise InvalidValue(f"column {key!r} of {name}", allowed=allowed, given="text")
        inputs: Any = _one_or_all({key: _as_tensor(value) for key, value in item.items() if key != column})
        return inputs, _as_tensor(item[column])
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise TypeError(type(item).__name__)
    *parts, label = item
    inputs = parts[0] if len(parts) == 1 else tuple(parts)
    if isinstance(inputs, Mapping):
        return {key: _as_tensor(value) for key, value in inputs.items()}, _as_tensor(label)
    read = tuple(map(_as_tensor, inputs)) if isinstance(inputs, tuple) else _as_tensor(inputs)
    return read, _as_tensor(label)


def _as_tensor(value: Any) -> Tensor:
    if not hasattr(value, "getbands"):
        return torch.as_tensor(value)
    pixels = np.array(value)  # a Pillow image
    return torch.from_numpy(pixels[..., None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)
