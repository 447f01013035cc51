"""Any map-style ``torch.utils.data.Dataset`` as records that can be fetched by their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue

_CHUNK = 1024


@dataclass(frozen=True, eq=False, repr=False)
class FromDataset:
    """The records of a data set whose items are pairs of an input and a target.

    An input is a tensor, an array, a number or an image of Pillow, or a tuple or a dict of them; an image becomes bytes
    of shape CHW. Items are read again whenever they are asked for; ``in_memory`` reads them once.
    """

    dataset: Dataset[Any]

    def __post_init__(self) -> None:
        given: object = self.dataset
        if isinstance(given, IterableDataset):
            raise InvalidValue("dataset", allowed="map-style: a draw asks for records by their places", given=given)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def batch(self, places_B: Tensor) -> tuple[Any, Any]:  # noqa: N803
        """Inputs and targets of the records at these places."""
        places = places_B.tolist()
        if not places:
            inputs, targets = self.batch(torch.zeros(1, dtype=torch.int64))
            return _mapped(_none_of, inputs), _mapped(_none_of, targets)
        pairs = [self._pair(place) for place in places]
        return _stacked([each for each, _ in pairs], places), _stacked([each for _, each in pairs], places)

    def _pair(self, place: int) -> tuple[Any, Any]:
        try:
            item = self.dataset[place]
        except Exception as error:  # the data set is the user's own code
            raise BadRecord(place, reason=f"reading it failed: {type(error).__name__}: {error}") from error
        if not isinstance(item, Sequence) or len(item) != 2:
            raise BadRecord(place, reason=f"it is not a pair of an input and a target, but a {type(item).__name__}")
        return _tensors(item[0], place), _tensors(item[1], place)


def in_memory(dataset: Dataset[Any]) -> InMemory:
    """All records of a data set, read once. Whatever it changes at random is fixed by this reading."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return InMemory(*dataset.tensors)
    records = FromDataset(dataset)
    if len(records) == 0:
        raise BadRecord(0, reason="there are no records")
    starts = range(0, len(records), _CHUNK)
    chunks = [records.batch(torch.arange(first, min(first + _CHUNK, len(records)))) for first in starts]
    for inputs, targets in chunks:
        if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
            raise InvalidValue("dataset", allowed="of one tensor for the input and one for the target", given=dataset)
    return InMemory(_joined(inputs for inputs, _ in chunks), _joined(targets for _, targets in chunks))


def _joined(chunks: Iterable[Tensor]) -> Tensor:
    parts, first = list(chunks), 0
    for part in parts:
        if part.shape[1:] != parts[0].shape[1:]:
            raise BadRecord(first, reason=_other_shape(part[0], parts[0][0]))
        first += len(part)
    return torch.cat(parts)


def _tensors(value: Any, place: int) -> Any:
    """The value with a tensor for everything in it that can be one."""
    match value:
        case Tensor():
            return value
        case dict():
            return {name: _tensors(each, place) for name, each in value.items()}
        case tuple():
            return tuple(_tensors(each, place) for each in value)
        case np.ndarray() | np.generic() | bool() | int() | float():
            return _from_numbers(value, place)
    return _from_image(value, place)


def _from_numbers(value: Any, place: int) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadRecord(place, reason=f"its numbers cannot be a tensor: {error}") from error


def _from_image(value: Any, place: int) -> Tensor:
    from PIL import Image

    if not isinstance(value, Image.Image):
        raise BadRecord(place, reason=f"it holds a {type(value).__name__}, which is neither a number nor an image")
    pixels = np.array(value)
    return torch.from_numpy(pixels[..., None] if pixels.ndim == 2 else pixels).permute(2, 0, 1)


def _stacked(values: Sequence[Any], places: Sequence[int]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _stacked([_part(each, name, p) for each, p in _pairs(values, places)], places) for name in first}
    if isinstance(first, tuple):
        return tuple(_stacked([_part(v, i, p) for v, p in _pairs(values, places)], places) for i in range(len(first)))
    for value, place in _pairs(values, places):
        if not isinstance(value, Tensor) or value.shape != first.shape:
            raise BadRecord(place, reason=_other_shape(value, first))
    return torch.stack(list(values))


def _pairs(values: Sequence[Any], places: Sequence[int]) -> Iterable[tuple[Any, int]]:
    return zip(values, places, strict=True)


def _part(value: Any, name: Any, place: int) -> Any:
    try:
        return value[name]
    except (KeyError, IndexError, TypeError) as error:
        raise BadRecord(place, reason=f"it has no part {name!r}, which other records have") from error


def _other_shape(value: Any, first: Tensor) -> str:
    given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    return f"it is of shape {given}, others are of {tuple(first.shape)}"


def _mapped(change: Any, value: Any) -> Any:
    match value:
        case dict():
            return {name: _mapped(change, each) for name, each in value.items()}
        case tuple():
            return tuple(_mapped(change, each) for each in value)
    return change(value)


def _none_of(tensor: Tensor) -> Tensor:
    return tensor[:0]
