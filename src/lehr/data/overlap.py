"""Records that two sets share, so that nothing is scored on records that something before has seen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from lehr.data import record_bytes
from lehr.data.in_memory import InMemory
from lehr.errors import InvalidValue


def overlap(one: InMemory, other: InMemory) -> tuple[int, ...]:
    """The places in ``other`` of the records whose input is also in ``one``; nothing where the two are disjoint.

    Records are compared as they are stored, so both sets must be of one shape and type.
    """
    kinds = [(records.inputs.dtype, tuple(records.inputs.shape[1:])) for records in (one, other)]
    if kinds[0] != kinds[1]:
        raise InvalidValue("other", allowed=f"records of {kinds[0]}, as the first are", given=kinds[1])
    seen = set(_digests(one))
    return tuple(place for place, digest in enumerate(_digests(other)) if digest in seen)


def _digests(records: InMemory) -> Iterator[bytes]:
    return (hashlib.blake2b(content, digest_size=16).digest() for content in record_bytes.contents(records))
