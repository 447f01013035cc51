"""Whether records can be trained on, looked at before the first step.

An error names the record. It is for the owner of the data, who holds the records: it is not a public value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lehr import validate
from lehr.data.in_memory import InMemory
from lehr.errors import BadRecord, InvalidValue
from lehr.interfaces import Records

MOST_OFF = 3  # enough for a rounded number, and for the halves of a cross-validation
_CHUNK = 4096


def check(records: Records, *, num_classes: int | None) -> None:
    """Raise ``BadRecord`` for the first record that cannot be trained on.

    That is one whose input has a NaN or an infinity, or whose label is not a whole number below ``num_classes``; where
    ``num_classes`` is None, targets are numbers of any kind and need only be finite.
    """
    if num_classes is not None:
        validate.count(num_classes=num_classes)
    if len(records) == 0:
        raise BadRecord(0, reason="there are no records")
    for first, inputs, targets in _chunks(records):
        for name, tensor in (*_parts("input", inputs), *_parts("target", targets)):
            _refuse_other_length(name, tensor, first=first, expected=min(_CHUNK, len(records) - first))
            _refuse(_not_finite(tensor), first=first, reason=f"its {name} holds a NaN or an infinity")
        for name, labels in () if num_classes is None else _parts("label", targets):
            _refuse_bad_labels(name, labels, first=first, num_classes=num_classes or 0)


def check_count(*, stated: int, held: int) -> None:
    """Refuse a stated number of records that is several times the number held, or a fraction of it.

    That is a slip, and batches would be as many times too small or too large. The number held is not in the error.
    """
    if not held <= MOST_OFF * stated <= MOST_OFF**2 * held:
        allowed = f"within a factor of {MOST_OFF} of how many there are"
        raise InvalidValue("records", allowed=allowed, given=stated)


def _chunks(records: Records) -> Iterator[tuple[int, Any, Any]]:
    for first in range(0, len(records), _CHUNK):
        last = min(first + _CHUNK, len(records))
        if isinstance(records, InMemory):  # a slice copies nothing
            yield first, records.inputs[first:last], records.targets[first:last]
        else:
            yield first, *records.batch(torch.arange(first, last))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    match value:
        case dict():
            yield from ((f"{name} {key!r}", each) for key, each in value.items())
        case tuple():
            yield from ((f"{name} {place}", each) for place, each in enumerate(value))
        case _:
            yield name, value


def _refuse_other_length(name: str, tensor: Tensor, *, first: int, expected: int) -> None:
    if tensor.ndim == 0 or len(tensor) != expected:
        held = 0 if tensor.ndim == 0 else len(tensor)
        raise BadRecord(first + min(held, expected), reason=f"of {expected} records asked for, {held} have a {name}")


def _not_finite(tensor: Tensor) -> Tensor | None:
    return ~torch.isfinite(tensor) if tensor.is_floating_point() or tensor.is_complex() else None


def _refuse_bad_labels(name: str, labels: Tensor, *, first: int, num_classes: int) -> None:
    # Written so that NaN is not in range.
    in_range = (labels >= 0) & (labels < num_classes)
    if labels.is_floating_point():
        in_range &= labels == labels.floor()
    allowed = f"not a whole number from 0 to {num_classes - 1}"
    _refuse(~in_range, first=first, reason=f"its {name} is {{value}}, {allowed}", values=labels)


def _refuse(wrong: Tensor | None, *, first: int, reason: str, values: Tensor | None = None) -> None:
    if wrong is None or not bool(wrong.any()):
        return
    spot = tuple(torch.nonzero(wrong)[0].tolist())
    shown = "" if values is None else values[spot].item()
    raise BadRecord(first + spot[0], reason=reason.replace("{value}", str(shown)))
