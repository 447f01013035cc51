from __future__ import annotations

import os
import pickle
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch

from lehr.data import finding, known, loading
from lehr.data.known import KnownDataSet, KnownFile, Layout
from lehr.errors import InvalidValue, StoreError
from tests.data import small_known


@pytest.fixture
def only(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """Makes one data set the only known one."""

    def know(data_set: KnownDataSet) -> str:
        monkeypatch.setattr(known, "KNOWN", MappingProxyType({data_set.name: data_set}))
        return data_set.name

    return know


@pytest.mark.parametrize("compressed", [False, True])
def test_a_known_data_set_is_read_with_its_public_facts(only: object, tmp_path: Path, compressed: bool) -> None:
    assert callable(only)
    small_known.write(tmp_path / "here", compressed=compressed)
    loaded = loading.load(only(small_known.known()), tmp_path / "here")
    assert (loaded.name, loaded.records, loaded.num_classes, loaded.shape) == ("small", 6, 3, (1, 2, 2))
    assert loaded.train.inputs.shape == (6, 1, 2, 2)
    assert loaded.train.inputs.flatten().tolist() == list(range(24))
    assert loaded.train.targets.tolist() == [0, 1, 2, 0, 1, 2]
    assert loaded.test.targets.tolist() == [2, 1, 0]
    assert loaded.preparation.mean == (0.5,)


def test_the_records_can_be_written_to(only: object, tmp_path: Path) -> None:
    assert callable(only)
    loaded = loading.load(only(small_known.known()), small_known.write(tmp_path / "here"))
    loaded.train.inputs[0] = 9
    loaded.train.targets[0] = 1
    assert loaded.train.batch(torch.tensor([0]))[0].flatten().tolist() == [9] * 4


def test_what_is_nowhere_is_told_with_files_and_folder(only: object, tmp_path: Path) -> None:
    assert callable(only)
    with pytest.raises(StoreError) as refused:
        loading.load(only(small_known.known()), tmp_path)
    for told in ("`lehr data get small`", f"{tmp_path}/Small/raw", "train-images (40 bytes, md5 ", "test-labels ("):
        assert told in str(refused.value)


def test_other_content_under_the_right_names_is_not_loaded(only: object, tmp_path: Path) -> None:
    assert callable(only)
    folder = small_known.write(tmp_path / "here")
    (folder / "train-labels").write_bytes(small_known.idx_bytes(6, numbers=bytes(6)))
    with pytest.raises(StoreError, match="train-labels: its content has the sha256"):
        loading.load(only(small_known.known()), folder)


def cifar_like(layout: Layout) -> KnownDataSet:
    return replace(small_known.known(), layouts=(layout,), shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.mark.parametrize("reader, labels", [("cifar-10-binary", [4]), ("cifar-100-binary", [1, 4])])
def test_both_binary_layouts_are_read_and_joined(only: object, tmp_path: Path, reader: str, labels: list[int]) -> None:
    assert callable(only)
    row = bytes(labels) + bytes(3072)
    files = [KnownFile(name=name, num_bytes=len(row), md5=md5(row).hexdigest()) for name in ("one", "two", "three")]
    for file in files:
        (tmp_path / file.name).write_bytes(row)
    layout = Layout(reader=reader, folders=("cifar",), train=tuple(files[:2]), test=(files[2],))
    loaded = loading.load(only(cifar_like(layout)), tmp_path)
    assert (loaded.train.targets.tolist(), loaded.test.targets.tolist()) == ([4, 4], [4])
    assert loaded.train.inputs.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("reader, name", [("cifar-10-python", "labels"), ("cifar-100-python", "fine_labels")])
def test_both_python_layouts_are_read(only: object, tmp_path: Path, reader: str, name: str) -> None:
    assert callable(only)
    content = pickle.dumps({"data": np.zeros((1, 3072), dtype=np.uint8), name: [4], "coarse_labels": [1]}, protocol=2)
    train, test = (KnownFile(name=part, md5=md5(content).hexdigest()) for part in ("train", "test"))
    for file in (train, test):
        (tmp_path / file.name).write_bytes(content)
    layout = Layout(reader=reader, folders=("cifar",), train=(train,), test=(test,))
    assert loading.load(only(cifar_like(layout)), tmp_path).train.targets.tolist() == [4]


def test_every_layout_has_a_reader() -> None:
    readers = {layout.reader for data_set in known.KNOWN.values() for layout in data_set.layouts}
    assert readers == set(loading._READERS)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InvalidValue, match="name must be one of"):
        loading.load("imagenet")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar-10"])
def test_the_real_one_is_complete_where_it_is_present(name: str) -> None:
    if not os.environ.get(finding.VARIABLE) or next(finding.candidates(known.named(name)), None) is None:
        pytest.skip(f"no {name} in LEHR_DATA")
    loaded, facts = loading.load(name), known.named(name)
    assert (len(loaded.train), len(loaded.test)) == (facts.records, facts.test_records)
    assert loaded.train.targets.bincount().shape == (facts.num_classes,)
    pixels = loaded.preparation.normalised(loaded.preparation.unit(loaded.train.inputs[:10_000]))
    assert pixels.mean().abs() < 0.02
    assert (pixels.std() - 1).abs() < 0.02
