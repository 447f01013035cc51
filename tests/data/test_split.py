from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lehr.data.records import InMemory
from lehr.data.split import Split, split
from lehr.errors import InvalidValue, StoreError
from lehr.privacy.rng import RunKey

KEY, OTHER_KEY = RunKey(bytes(32)), RunKey(bytes(range(32)))


def numbered(count: int) -> InMemory:
    return InMemory(torch.arange(count, dtype=torch.int64), torch.zeros(count))


def parts_of(values: list[int], key: RunKey = KEY) -> list[int]:
    records = InMemory(torch.tensor(values, dtype=torch.int64), torch.zeros(len(values)))
    found: list[int] = split(records, key=key, public_fraction=0.3, test_fraction=0.3).parts.tolist()
    return found


@given(
    values=st.lists(st.integers(0, 50), max_size=30),
    more=st.integers(0, 50),
    index=st.integers(0, 30),
    seed=st.binary(min_size=32, max_size=32),
)
def test_one_record_more_moves_no_other(values: list[int], more: int, index: int, seed: bytes) -> None:
    key, index = RunKey(seed), min(index, len(values))
    with_one_more = parts_of([*values[:index], more, *values[index:]], key)
    del with_one_more[index]
    assert with_one_more == parts_of(values, key)


def test_equal_inputs_go_to_the_same_part_whatever_their_labels() -> None:
    images = torch.arange(200, dtype=torch.uint8).view(50, 1, 2, 2)
    doubled = InMemory(torch.cat([images, images]), torch.arange(100))
    parts = split(doubled, key=KEY, public_fraction=0.4, test_fraction=0.3).parts
    assert parts[:50].equal(parts[50:])
    assert set(parts.tolist()) == {0, 1, 2}


def test_the_parts_are_disjoint_and_have_the_stated_fractions() -> None:
    made = split(numbered(20_000), key=KEY, public_fraction=0.2, test_fraction=0.1)
    assert torch.cat([made.private, made.public, made.test]).sort().values.equal(torch.arange(20_000))
    # Five standard deviations of a binomial number; a rate off by a tenth would be seven or more away.
    for indices, fraction in ((made.public, 0.2), (made.test, 0.1), (made.private, 0.7)):
        assert abs(len(indices) - 20_000 * fraction) < 5 * (20_000 * fraction * (1 - fraction)) ** 0.5
    assert split(numbered(100), key=KEY).private.tolist() == list(range(100))
    assert repr(made) == "Split(...)"


def test_the_split_follows_the_key() -> None:
    values = list(range(100))
    assert parts_of(values) == parts_of(values)
    assert parts_of(values) != parts_of(values, OTHER_KEY)


def test_a_larger_public_part_keeps_those_that_were_public() -> None:
    small, large = (split(numbered(500), key=KEY, public_fraction=fraction) for fraction in (0.1, 0.4))
    assert set(small.public.tolist()) < set(large.public.tolist())


@pytest.mark.parametrize(
    "public, test", [(-0.1, 0.0), (0.0, 1.0), (0.5, 0.5), (float("nan"), 0.0), (0.0, float("nan"))]
)
def test_impossible_fractions_are_refused(public: float, test: float) -> None:
    with pytest.raises(InvalidValue):
        split(numbered(3), key=KEY, public_fraction=public, test_fraction=test)


def test_a_saved_split_reads_back_and_is_private(tmp_path: Path) -> None:
    made = split(numbered(100), key=KEY, public_fraction=0.3, test_fraction=0.3)
    made.save(tmp_path / "split.npy")
    assert stat.S_IMODE((tmp_path / "split.npy").stat().st_mode) == 0o600
    assert Split.load(tmp_path / "split.npy").parts.equal(made.parts)
    with pytest.raises(StoreError, match="File exists"):
        made.save(tmp_path / "split.npy")


@pytest.mark.parametrize(
    "parts",
    [
        np.array([3], np.uint8),
        np.array([0.0]),
        np.zeros((2, 2), np.uint8),
        np.array([{}], dtype=object),
        b"",
        b"PK\3\4",
    ],
    ids=str,
)
def test_other_arrays_pickles_and_damaged_files_are_refused(tmp_path: Path, parts: Any) -> None:
    path = tmp_path / "split.npy"
    if isinstance(parts, bytes):
        path.write_bytes(parts)
    else:
        np.save(path, parts)
    for wrong in (path, tmp_path / "nowhere"):
        with pytest.raises(StoreError):
            Split.load(wrong)
