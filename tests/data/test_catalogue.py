from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from lehr.data import catalogue, data_set
from lehr.data.catalogue import CATALOGUE, DIGITS, DataFile, DataSetInfo, Layout, data_set_info
from lehr.data.data_set import DataSet
from lehr.data.preparation import Preparation
from lehr.data.records import InMemory, overlap
from lehr.errors import InvalidValue, StoreError
from tests.data import small_known
from tools.fresh_imports import heavy_imports

EVERY = pytest.mark.parametrize("known", CATALOGUE.values(), ids=str)


@EVERY
def test_the_public_facts_fit_together(known: DataSetInfo) -> None:
    assert data_set_info(known.name) is known
    assert len(known.mean) == known.shape[0]
    assert Preparation(mean=known.mean, std=known.std).mean == known.mean
    assert known.num_bytes == (known.records + known.test_records) * (math.prod(known.shape) + 1)
    assert all(source.address.startswith("https://") for source in known.sources)


@pytest.mark.parametrize("known", [info for info in CATALOGUE.values() if info.layout], ids=str)
def test_every_file_has_the_size_of_its_records_and_is_known_by_a_hash_or_comes_in_a_known_archive(
    known: DataSetInfo,
) -> None:
    assert known.layout is not None
    for file in known.layout.files:
        assert file.num_bytes
        assert re.fullmatch("[0-9a-f]{64}", file.sha256) if file.sha256 else all(s.md5 for s in known.sources)
    for part, records in ((known.layout.train, known.records), (known.layout.test, known.test_records)):
        length = sum(file.num_bytes for file in part)
        assert 0 <= length - records * (math.prod(known.shape) + 1) <= max(records, 24)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="cifar-10, cifar-100, digits, fashion-mnist, mnist"):
        data_set_info("imagenet")


SMALL = small_known.known()


def where(data_dir: Path | None = None) -> Path | None:
    found = catalogue.find_copy(SMALL, data_dir)
    return None if found is None else found.folder.absolute()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "folder", ["data/Small/raw", "datasets/small", ".cache/lehr/small", ".cache/torchvision/small", "usr/Small/raw"]
)
def test_the_usual_folders_are_looked_through(bare_machine: Path, folder: str, compressed: bool) -> None:
    small_known.write(bare_machine / folder, compressed=compressed)
    assert where() == bare_machine / folder


@pytest.mark.parametrize("below", ["", "small", "Small/raw"])
def test_a_named_folder_is_the_data_sets_own_or_one_above(bare_machine: Path, tmp_path: Path, below: str) -> None:
    folder = small_known.write(tmp_path / "named" / below)
    assert where(tmp_path / "named") == folder


def test_the_variable_names_several_folders(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_known.write(tmp_path / "b")
    monkeypatch.setenv("LEHR_DATA", f"{tmp_path / 'a'}{os.pathsep}{folder}")
    assert where() == folder


def test_the_given_folder_comes_before_the_variable_and_that_before_the_usual_ones(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [
        small_known.write(folder) for folder in (tmp_path / "a", tmp_path / "b", bare_machine / "data" / "small")
    ]
    monkeypatch.setenv("LEHR_DATA", str(folders[1]))
    assert [found.folder.absolute() for found in catalogue.local_copies(SMALL, folders[0])] == folders


def test_a_folder_with_a_file_missing_is_none(bare_machine: Path, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "named")
    (folder / "test-labels").unlink()
    assert list(catalogue.local_copies(SMALL, folder)) == []


def test_a_folder_with_other_content_is_passed_over_and_told(bare_machine: Path, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "named")
    content = bytearray((folder / "test-labels").read_bytes())
    content[-1] ^= 1
    (folder / "test-labels").write_bytes(content)
    [found] = catalogue.local_copies(SMALL, folder)
    assert "test-labels: its content has the SHA-256" in str(found.problem())
    small_known.write(bare_machine / "data" / "small")
    assert where(folder) == bare_machine / "data" / "small"


def test_a_size_is_compared_where_no_hash_is_known(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert catalogue.read_verified(DataFile(name="file", num_bytes=5), path) == b"12345"
    with pytest.raises(StoreError, match="holds only 5"):
        catalogue.read_verified(DataFile(name="file", num_bytes=6), path)


def test_the_cache_is_where_the_system_keeps_caches(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert catalogue.cache_folder() == bare_machine / ".cache" / "lehr"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert catalogue.cache_folder() == Path("/elsewhere/lehr")


@pytest.fixture
def only(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[DataSetInfo], str]:
    """Makes one data set the only known one."""

    def know(data_set: DataSetInfo) -> str:
        monkeypatch.setattr(catalogue, "CATALOGUE", MappingProxyType({data_set.name: data_set}))
        return data_set.name

    return know


@pytest.mark.parametrize("compressed", [False, True])
def test_a_known_data_set_is_read_with_its_public_facts(
    only: Callable[[DataSetInfo], str], tmp_path: Path, compressed: bool
) -> None:
    small_known.write(tmp_path / "here", compressed=compressed)
    loaded = data_set.load(only(small_known.known()), tmp_path / "here")
    assert (loaded.name, loaded.records, loaded.num_classes, loaded.shape) == ("small", 6, 3, (1, 2, 2))
    assert loaded.train.inputs.shape == (6, 1, 2, 2)
    assert loaded.train.inputs.flatten().tolist() == list(range(24))
    assert loaded.train.targets.tolist() == [0, 1, 2, 0, 1, 2]
    assert loaded.test.targets.tolist() == [2, 1, 0]
    assert loaded.preparation.mean == (0.5,)


def test_what_is_nowhere_is_told_with_files_and_folder(only: Callable[[DataSetInfo], str], tmp_path: Path) -> None:
    with pytest.raises(StoreError) as refused:
        data_set.load(only(small_known.known()), tmp_path)
    for told in ("`lehr data get small`", f"{tmp_path}/Small/raw", "train-images (40 bytes)", "test-labels ("):
        assert told in str(refused.value)


def test_other_content_under_the_right_names_is_not_loaded(only: Callable[[DataSetInfo], str], tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "here")
    (folder / "train-labels").write_bytes(small_known.idx_bytes(6, numbers=bytes(6)))
    with pytest.raises(StoreError, match="train-labels: its content has the SHA-256"):
        data_set.load(only(small_known.known()), folder)


def cifar_like(layout: Layout) -> DataSetInfo:
    return replace(small_known.known(), layout=layout, shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.mark.parametrize("reader, labels", [("cifar-10", [4]), ("cifar-100", [1, 4])])
def test_both_binary_layouts_are_read_and_joined(
    only: Callable[[DataSetInfo], str], tmp_path: Path, reader: str, labels: list[int]
) -> None:
    row = bytes(labels) + bytes(3072)
    files = [
        DataFile(name=name, num_bytes=len(row), sha256=sha256(row).hexdigest()) for name in ("one", "two", "three")
    ]
    for file in files:
        (tmp_path / file.name).write_bytes(row)
    layout = Layout(reader=reader, folders=("cifar",), train=tuple(files[:2]), test=(files[2],))
    loaded = data_set.load(only(cifar_like(layout)), tmp_path)
    assert (loaded.train.targets.tolist(), loaded.test.targets.tolist()) == ([4, 4], [4])
    assert loaded.train.inputs.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_the_real_one_is_complete_where_it_is_present(name: str) -> None:
    if (
        not os.environ.get(catalogue.VARIABLE)
        or next(catalogue.local_copies(catalogue.data_set_info(name)), None) is None
    ):
        pytest.skip(f"no {name} in LEHR_DATA")
    loaded, facts = data_set.load(name), catalogue.data_set_info(name)
    assert (len(loaded.train), len(loaded.test)) == (facts.records, facts.test_records)
    assert loaded.train.targets.bincount().shape == (facts.num_classes,)
    pixels = loaded.preparation.normalised(loaded.preparation.unit(loaded.train.inputs[:10_000]))
    assert pixels.mean().abs() < 0.02
    assert (pixels.std() - 1).abs() < 0.02


def test_the_shipped_digits_are_as_many_as_is_public_disjoint_and_normalised_by_the_constants() -> None:
    train, test = data_set.read_digits()
    assert (len(train), len(test)) == (DIGITS.records, DIGITS.test_records)
    assert overlap(train, test) == ()
    pixels = torch.cat([train.inputs, test.inputs])
    assert abs(pixels.mean().item() - DIGITS.mean[0]) < 1e-4
    assert abs(pixels.std().item() - DIGITS.std[0]) < 1e-4


def stated(**changed: object) -> DataSet:
    records = InMemory(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))
    fields: dict[str, object] = {
        "name": "mine",
        "train": records,
        "test": records,
        "num_classes": 2,
        "shape": (1, 2, 2),
        "preparation": Preparation(),
        "records": 5,
    }
    return DataSet(**(fields | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [{"records": 0}, {"records": 1.5}, {"num_classes": 0}, {"name": " "}])
def test_facts_that_cannot_be_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidValue):
        stated(**changed)


SOURCES = Path(__file__).parents[2] / "src"


def test_finding_downloading_and_decoding_need_no_torch() -> None:
    light = ["lehr.data", "lehr.data.catalogue", "lehr.data.decoding", "lehr.data.download", "lehr.cli.data"]
    assert heavy_imports(light, watched=["torch", "sklearn", "PIL"], search_path=SOURCES) == {}


def test_the_python_layout_of_cifar_is_named_with_the_address_of_the_binary_one(bare_machine: Path) -> None:
    (bare_machine / "data" / "cifar-10-batches-py").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cifar-10-batches-py is the Python .*cifar-10-binary\.tar\.gz"):
        data_set.load("cifar-10")
