from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from lehr.data import file_content, readers
from lehr.data.readers import read_inputs
from lehr.errors import InvalidValue, StoreError
from tests.data.small_known import idx_bytes


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_reads_the_same_stored_or_compressed_whatever_its_name(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(b"hello") if compressed else b"hello")
    assert file_content.read_exactly(path, num_bytes=5) == b"hello"


@pytest.mark.parametrize("num_bytes, told", [(4, "4 bytes and holds more"), (6, "6 bytes and holds only 5")])
def test_a_file_of_another_length_is_refused(tmp_path: Path, num_bytes: int, told: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    with pytest.raises(StoreError, match=told):
        file_content.read_exactly(path, num_bytes=num_bytes)


def test_a_decompression_bomb_is_read_no_further_than_it_should_go(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(50 * 1024**2)))
    with file_content.open_file(path) as stream:
        with pytest.raises(StoreError, match="holds more"):
            file_content.exactly(stream, 1000, path=path)
        assert stream.tell() == 1001


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:12] + b"\xff\xff" + raw[14:], lambda raw: raw[:3]]
)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "file.gz"
    assert callable(damage)
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 50)))
    with pytest.raises(StoreError, match=r"file\.gz"):
        file_content.read_exactly(path, num_bytes=256 * 50)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere: No such file"):
        file_content.read_exactly(tmp_path / "nowhere", num_bytes=1)
    with pytest.raises(StoreError, match="not a regular file"):
        file_content.read_exactly(tmp_path, num_bytes=1)


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


@pytest.mark.parametrize("names", readers.NPZ_NAMES, ids=str)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_records_are_read_back_under_each_pair_of_names(tmp_path: Path, names: tuple[str, str], save: object) -> None:
    assert callable(save)
    save(tmp_path / "a.npz", **{names[0]: INPUTS, names[1]: TARGETS, "other": np.zeros(2)})
    records = readers.read_npz(tmp_path / "a.npz")
    assert records.inputs.numpy().tolist() == INPUTS.tolist()
    assert records.targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["bool", "<f4", ">f4", ">i8", "<u2", ">u4", "f2", "i1", "longdouble"])
def test_every_type_of_number_becomes_a_tensor(tmp_path: Path, kind: str) -> None:
    path = archive(tmp_path / "a.npz", x=member(np.array([0, 1, 1], dtype=kind)), y=member(TARGETS))
    assert readers.read_npz(path).inputs.to(torch.int64).tolist() == [0, 1, 1]


def test_an_array_stored_by_columns_reads_the_same(tmp_path: Path) -> None:
    values = np.arange(6.0).reshape(3, 2)
    path = archive(tmp_path / "a.npz", x=member(np.asfortranarray(values)), y=member(TARGETS))
    assert readers.read_npz(path).inputs.tolist() == values.tolist()


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
        readers.read_npz(archive(tmp_path / "hostile.npz", inputs=content, targets=member(TARGETS)))


def test_a_decompression_bomb_is_not_unfolded(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", inputs=member(np.zeros(10**7, dtype=np.uint8)), targets=member(TARGETS))
    assert path.stat().st_size < 10**5
    with pytest.raises(StoreError, match="claims 10,000,000 bytes, more than 1,000"):
        readers.read_npz(path, at_most=1000)


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_compression_that_unfolds_without_a_limit_is_refused(tmp_path: Path, compression: int) -> None:
    path = archive(tmp_path / "a.npz", compression, inputs=member(INPUTS), targets=member(TARGETS))
    with pytest.raises(StoreError, match="neither stored as it is nor deflated"):
        readers.read_npz(path)


def test_a_list_of_members_is_read_up_to_a_limit(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as written:
        for number in range(500):
            written.writestr(f"{number:010}" * 1000, b"")
    with pytest.raises(StoreError, match="list of members is longer"):
        readers.read_npz(tmp_path / "a.npz")


def test_what_is_no_archive_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for content in (b"", b"nothing", archive(path, inputs=member(INPUTS), targets=member(TARGETS)).read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"a\.npz"):
            readers.read_npz(path)
    whole = bytearray(
        archive(path, compression=zipfile.ZIP_STORED, inputs=member(INPUTS), targets=member(TARGETS)).read_bytes()
    )
    whole[whole.index(INPUTS.tobytes()) + 1] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="damaged"):
        readers.read_npz(path)
    with pytest.raises(StoreError, match="No such file"):
        readers.read_npz(tmp_path / "nowhere.npz")


def test_other_names_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds \['x', 'z'\], not inputs and targets or x and y"):
        readers.read_npz(archive(tmp_path / "a.npz", x=member(INPUTS), z=member(TARGETS)))


IMAGES = idx_bytes(2, 2, 2, numbers=bytes(range(8)))


@pytest.mark.parametrize("compressed", [False, True])
def test_an_array_is_read_back(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(IMAGES) if compressed else IMAGES)
    assert readers.read_idx(path).tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert readers.parse_idx(bytearray(IMAGES), path=path).tolist() == readers.read_idx(path).tolist()


@pytest.mark.parametrize("kind, code", [(0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")])
def test_every_type_of_number_is_read(tmp_path: Path, kind: int, code: str) -> None:
    numbers = np.array([-1, 0, 100], dtype=code)
    path = tmp_path / "numbers"
    path.write_bytes(idx_bytes(3, numbers=numbers.tobytes(), kind=kind))
    read = readers.read_idx(path)
    assert read.tolist() == [-1, 0, 100]
    assert read.dtype.isnative


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(IMAGES[:3], id="ends in the magic"),
        pytest.param(IMAGES[:9], id="ends in the header"),
        pytest.param(IMAGES[:-1], id="ends in the numbers"),
        pytest.param(IMAGES + b"\0", id="goes on"),
        pytest.param(b"\x89PNG" + IMAGES, id="other magic"),
        pytest.param(bytes([0, 0, 0x08, 0]), id="no axes"),
        pytest.param(bytes([0, 0, 0x07, 1]) + bytes(4), id="unknown type"),
        pytest.param(bytes([0, 0, 0x08, 255]) + bytes(4 * 255), id="too many axes"),
        pytest.param(idx_bytes(2**32 - 1, numbers=b"1"), id="a size below zero"),
        pytest.param(idx_bytes(2**31, 2**31, 2**31, numbers=b"1"), id="more than any memory"),
        pytest.param(idx_bytes(0, 2**32 - 1, 2**32 - 1, numbers=b""), id="no records, each larger than any memory"),
        pytest.param(idx_bytes(2**32 - 1, 0, numbers=b""), id="billions of records with nothing in them"),
    ],
)
def test_a_hostile_file_is_refused_by_name(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / "hostile"
    for stored in (damaged, gzip.compress(damaged)):
        path.write_bytes(stored)
        with pytest.raises(StoreError, match="hostile"):
            readers.read_idx(path)
    with pytest.raises(StoreError, match="hostile"):
        readers.parse_idx(bytearray(damaged), path=path)


PATH = Path("batch.bin")


def row(*labels: int) -> bytes:
    return bytes(labels) + bytes([1] * 1024 + [2] * 1024 + [3] * 1024)


@pytest.mark.parametrize("labels", [(7,), (19, 99)])
def test_the_last_label_is_used_and_the_planes_are_channels(labels: tuple[int, ...]) -> None:
    records = readers.parse_cifar(bytearray(row(*labels) * 2), num_labels=len(labels), path=PATH)
    assert records.targets.tolist() == [labels[-1]] * 2
    assert records.inputs.shape == (2, 3, 32, 32)
    assert records.inputs.dtype == torch.uint8
    assert records.inputs[1, :, 5, 6].tolist() == [1, 2, 3]


def test_a_part_of_a_record_is_refused() -> None:
    with pytest.raises(StoreError, match=r"batch\.bin: 3,072 bytes are not a multiple of 3073"):
        readers.parse_cifar(bytearray(row(1)[:-1]), num_labels=1, path=PATH)


GREY = (1, 4, 6)


@pytest.fixture
def image() -> Tensor:
    return torch.arange(24, dtype=torch.uint8).reshape(4, 6)


def test_a_colour_image_has_its_channels_first(tmp_path: Path) -> None:
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "one.PNG")
    assert read_inputs(tmp_path / "one.PNG", shape=(3, 4, 6)).equal(torch.from_numpy(pixels).permute(2, 0, 1)[None])


def test_an_image_of_another_size_is_scaled_only_where_that_is_asked(tmp_path: Path) -> None:
    Image.new("RGB", (32, 24)).save(tmp_path / "large.jpg")
    with pytest.raises(InvalidValue, match="4 × 6 pixels"):
        read_inputs(tmp_path / "large.jpg", shape=GREY)
    assert read_inputs(tmp_path / "large.jpg", shape=GREY, resize=True).shape == (1, *GREY)


@pytest.mark.parametrize("name", ["inputs", "x", "images"])
def test_arrays_of_npz_files_are_found_by_name_with_or_without_a_channel(
    tmp_path: Path, image: Tensor, name: str
) -> None:
    np.savez(tmp_path / "one.npz", **{name: image.numpy()[None]})  # type: ignore[arg-type]
    assert read_inputs(tmp_path / "one.npz", shape=GREY).equal(image[None, None])
    np.savez(tmp_path / "one.npz", **{name: image.numpy()[None, None]})  # type: ignore[arg-type]
    assert read_inputs(tmp_path / "one.npz", shape=GREY).equal(image[None, None])


@pytest.mark.parametrize("name", ["no.png", "no.npz", "no-idx3-ubyte"])
@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind", b"PK\x03\x04 and then"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=name):
        read_inputs(tmp_path / name, shape=GREY)


def test_an_image_is_no_record_of_a_model_that_takes_none(tmp_path: Path) -> None:
    Image.new("L", (6, 4)).save(tmp_path / "one.png")
    with pytest.raises(InvalidValue, match="shape"):
        read_inputs(tmp_path / "one.png", shape=(24,))
