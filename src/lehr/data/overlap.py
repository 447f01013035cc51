"""Records that two sets share, so that nothing is scored on records that something before has seen."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator

from lehr.data.record_set import RecordSet
from lehr.data.streamed_folder import StreamedFolder
from lehr.errors import InvalidValue

_LOOKED_AT = 256  # records of a folder that is not held: reading it whole would take longer than many a run


def overlap(one: RecordSet, other: RecordSet) -> tuple[int, ...]:
    """The places in ``other`` of the records whose input is also in ``one``; nothing where the two are disjoint.

    Records are compared as they are stored, so both sets must be of one shape and type. Of streamed folders all files
    of ``other``, and those of ``one`` that have as many bytes as one of them, are read.
    """
    if one.kind != other.kind:
        raise InvalidValue("other", allowed=f"records of {one.kind}, as the first are", given=other.kind)
    if isinstance(one, StreamedFolder) and isinstance(other, StreamedFolder):
        one = one.as_long_as(other)
    seen = set(_digests(one))
    return tuple(place for place, digest in enumerate(_digests(other)) if digest in seen)


def is_mostly_in(part: RecordSet, whole: RecordSet) -> bool:
    """Whether more than half of the records are in another set; of a streamed folder, of some from everywhere in it.

    Sets that cannot be compared are taken for disjoint.
    """
    if part.kind != whole.kind:
        return False
    looked_at = part.spread(_LOOKED_AT) if isinstance(part, StreamedFolder) else part
    return 2 * len(overlap(whole, looked_at)) > len(looked_at)


def sketch(records: RecordSet) -> frozenset[bytes]:
    """The smallest hashes of the records' inputs: two sets share about as many of them as they share records."""
    looked_at = records.spread(_LOOKED_AT) if isinstance(records, StreamedFolder) else records
    return frozenset(heapq.nsmallest(_LOOKED_AT, set(_digests(looked_at))))


def _digests(records: RecordSet) -> Iterator[bytes]:
    return (hashlib.blake2b(content, digest_size=16).digest() for content in records.contents())
