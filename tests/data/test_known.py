from __future__ import annotations

import math
import re

import pytest

from lehr.data.known import KNOWN, Archive, KnownDataSet, Mirror, named
from lehr.data.preparation import Preparation
from lehr.errors import InvalidValue

EVERY = pytest.mark.parametrize("known", KNOWN.values(), ids=str)


@EVERY
def test_the_public_facts_fit_together(known: KnownDataSet) -> None:
    assert named(known.name) is known
    assert len(known.mean) == known.shape[0]
    assert Preparation(mean=known.mean, std=known.std).mean == known.mean
    assert known.num_bytes == (known.records + known.test_records) * (math.prod(known.shape) + 1)


@EVERY
def test_every_file_is_told_by_something_and_hashes_are_whole(known: KnownDataSet) -> None:
    for file in (file for layout in known.layouts for file in layout.files):
        assert file.num_bytes or file.md5
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.md5 is None or re.fullmatch("[0-9a-f]{32}", file.md5)


@EVERY
def test_what_is_downloaded_without_a_known_content_comes_in_an_archive_of_known_hash(known: KnownDataSet) -> None:
    if any(not file.sha256 for layout in known.layouts[:1] for file in layout.files):
        assert all(isinstance(source, Archive) for source in known.sources)


@EVERY
def test_mirrors_are_asked_through_https_only(known: KnownDataSet) -> None:
    for source in known.sources:
        if isinstance(source, Mirror | Archive):
            assert source.address.startswith("https://")


@EVERY
def test_the_binary_files_are_as_long_as_their_records(known: KnownDataSet) -> None:
    for layout in known.layouts:
        lengths = [sum(file.num_bytes or 0 for file in part) for part in (layout.train, layout.test)]
        for length, records in zip(lengths, (known.records, known.test_records), strict=True):
            assert length == 0 or 0 <= length - records * (math.prod(known.shape) + 1) <= max(records, 24)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="cifar-10, cifar-100, digits, fashion-mnist, mnist"):
        named("imagenet")
