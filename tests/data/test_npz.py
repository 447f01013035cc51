from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lehr.data import npz
from lehr.errors import BadRecord, StoreError

INPUTS = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
TARGETS = np.array([0, 1, 2])


def member(array: object) -> bytes:
    whole = io.BytesIO()
    np.save(whole, np.asarray(array))
    return whole.getvalue()


def archive(path: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", compression) as written:
        for name, content in members.items():
            written.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("names", npz.NAMES, ids=str)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_records_are_read_back_under_each_pair_of_names(tmp_path: Path, names: tuple[str, str], save: object) -> None:
    assert callable(save)
    save(tmp_path / "a.npz", **{names[0]: INPUTS, names[1]: TARGETS, "other": np.zeros(2)})
    records = npz.read(tmp_path / "a.npz")
    assert records.inputs.numpy().tolist() == INPUTS.tolist()
    assert records.targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["bool", "<f4", ">f4", ">i8", "<u2", ">u4", "f2", "i1", "longdouble"])
def test_every_type_of_number_becomes_a_tensor(tmp_path: Path, kind: str) -> None:
    path = archive(tmp_path / "a.npz", x=member(np.array([0, 1, 1], dtype=kind)), y=member(TARGETS))
    assert npz.read(path).inputs.to(torch.int64).tolist() == [0, 1, 1]


def test_an_array_stored_by_columns_reads_the_same(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(3, 2)
    path = archive(tmp_path / "a.npz", x=member(np.asfortranarray(values)), y=member(TARGETS))
    assert npz.read(path).inputs.tolist() == values.tolist()


def test_an_array_of_objects_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}, {}], dtype=object), y=TARGETS)
    with pytest.raises(StoreError, match="not of plain numbers"):
        npz.read(tmp_path / "a.npz")


HUGE = member(INPUTS).replace(b"(3, 1, 2, 2)", b"(9**9,)     ")
PROMISES = member(INPUTS).replace(b"(3, 1, 2, 2), ", b"(99999999999,)")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(member(INPUTS)[:-1], id="a byte short"),
        pytest.param(member(INPUTS) + b"\0", id="a byte long"),
        pytest.param(member(INPUTS)[:20], id="ends in its header"),
        pytest.param(b"\x80\x04N." * 9, id="a pickle"),
        pytest.param(HUGE, id="a header that is no literal"),
        pytest.param(PROMISES, id="a header that promises more than the memory"),
        pytest.param(member(INPUTS).replace(b"(3, 1, 2, 2)", b"(-3, 1, 2,2)"), id="a length below zero"),
        pytest.param(member(INPUTS).replace(b"\x93NUMPY\x01", b"\x93NUMPY\x03"), id="another version"),
        pytest.param(member(np.zeros(3, dtype="U5")), id="texts"),
        pytest.param(member(np.zeros(3, dtype="u1,f4")), id="mixed"),
        pytest.param(member(5), id="no record axis"),
        pytest.param(member(INPUTS).replace(b"}", b"{"), id="a header that is never closed"),
        pytest.param(member(INPUTS).replace(b"(3, 1, 2, 2)", b"(0, 10**22,)"), id="a length that is computed"),
        pytest.param(member(np.zeros((0, 7))).replace(b"(0, 7), ", b"(0, 9" + b"9" * 20 + b"), "), id="no records"),
        pytest.param(member(np.zeros((3, 0))), id="records with nothing in them"),
        pytest.param(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", id="a header of four gigabytes"),
    ],
)
def test_a_hostile_member_is_refused_by_the_name_of_the_file(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StoreError, match="hostile"):
        npz.read(archive(tmp_path / "hostile.npz", inputs=content, targets=member(TARGETS)))


def test_a_decompression_bomb_is_not_unfolded(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", inputs=member(np.zeros(10**7, dtype=np.uint8)), targets=member(TARGETS))
    assert path.stat().st_size < 10**5
    with pytest.raises(StoreError, match="promises 10,000,000 bytes, more than 1,000"):
        npz.read(path, at_most=1000)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_unfolds_without_a_limit_is_refused(tmp_path: Path, compression: int) -> None:
    path = archive(tmp_path / "a.npz", compression, inputs=member(INPUTS), targets=member(TARGETS))
    with pytest.raises(StoreError, match="neither stored as it is nor deflated"):
        npz.read(path)


def test_a_list_of_members_is_read_up_to_a_limit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as written:
        for number in range(500):
            written.writestr(f"{number:010}" * 1000, b"")
    with pytest.raises(StoreError, match="list of members is longer"):
        npz.read(tmp_path / "a.npz")


def test_what_is_no_archive_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"nothing", archive(path, inputs=member(INPUTS), targets=member(TARGETS)).read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"a\.npz"):
            npz.read(path)
    whole = bytearray(
        archive(path, compression=zipfile.ZIP_STORED, inputs=member(INPUTS), targets=member(TARGETS)).read_bytes()
    )
    whole[whole.index(INPUTS.tobytes()) + 1] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="damaged"):
        npz.read(path)
    with pytest.raises(StoreError, match="No such file"):
        npz.read(tmp_path / "nowhere.npz")


def test_other_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds \['x', 'z'\], not inputs and targets or x and y"):
        npz.read(archive(tmp_path / "a.npz", x=member(INPUTS), z=member(TARGETS)))


def test_a_target_too_few_names_the_record(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="record 2"):
        npz.read(archive(tmp_path / "a.npz", x=member(INPUTS), y=member(TARGETS[:2])))
