from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lehr.data.file_content import read_file
from lehr.data.readers import NPZ_NAMES, parse_cifar, parse_idx, read_idx, read_inputs, read_npz
from lehr.errors import InvalidValue, StoreError
from tests.data.small_known import idx_bytes


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_files_are_read_up_to_a_limit_stored_or_compressed(tmp_path: Path, compress: type) -> None:
    path = tmp_path / "file"
    path.write_bytes(compress(b"hello"))
    assert read_file(path, at_most=5) == b"hello"
    with pytest.raises(StoreError, match="more than 4 bytes"):
        read_file(path, at_most=4)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-9], lambda raw: raw[:12] + b"\xff\xff" + raw[14:]])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(bytes(range(256)) * 50)))
    for wrong in (path, tmp_path / "nowhere", tmp_path):
        with pytest.raises(StoreError, match=wrong.name):
            read_file(wrong)


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


@pytest.mark.parametrize("names", NPZ_NAMES, ids=str)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_records_are_found_under_each_pair_of_names(tmp_path: Path, names: tuple[str, str], save: object) -> None:
    assert callable(save)
    save(tmp_path / "a.npz", **{names[0]: INPUTS, names[1]: TARGETS, "other": np.zeros(2)})
    records = read_npz(tmp_path / "a.npz")
    assert records.inputs.numpy().tolist() == INPUTS.tolist()
    assert records.targets.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", ["bool", "<f4", ">f4", ">i8", "<u2", ">u4", "f2", "i1"])
def test_every_type_of_number_becomes_a_tensor(tmp_path: Path, kind: str) -> None:
    values = np.asfortranarray(np.array([[0, 1], [1, 0], [1, 1]], dtype=kind))
    path = archive(tmp_path / "a.npz", x=member(values), y=member(TARGETS))
    assert read_npz(path).inputs.to(torch.int64).tolist() == [[0, 1], [1, 0], [1, 1]]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(member(INPUTS)[:-1], id="a byte short"),
        pytest.param(member(INPUTS)[:20], id="ends in its header"),
        pytest.param(b"\x80\x04N." * 9, id="a pickle"),
        pytest.param(member(np.array([{}], dtype=object)), id="objects"),
        pytest.param(member(INPUTS).replace(b"(3, 1, 2, 2)", b"(9**9,)     "), id="a header that is no literal"),
        pytest.param(member(INPUTS).replace(b"(3, 1, 2, 2), ", b"(99999999999,)"), id="claims more than it has"),
        pytest.param(member(INPUTS).replace(b"(3, 1, 2, 2)", b"(-3, 1, 2,2)"), id="a length below zero"),
        pytest.param(member(np.zeros(3, dtype="U5")), id="texts"),
        pytest.param(member(np.zeros(3, dtype="u1,f4")), id="mixed"),
        pytest.param(member(5), id="no record axis"),
        pytest.param(member(INPUTS).replace(b"}", b"{"), id="a header that is never closed"),
        pytest.param(member(np.zeros((0, 7))).replace(b"(0, 7), ", b"(0, 9" + b"9" * 20 + b"), "), id="no records"),
        pytest.param(member(np.zeros((3, 0))), id="records with nothing in them"),
        pytest.param(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", id="a header of four gigabytes"),
    ],
)
def test_a_hostile_member_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StoreError, match="hostile"):
        read_npz(archive(tmp_path / "hostile.npz", inputs=content, targets=member(TARGETS)))


def test_a_decompression_bomb_is_not_unfolded(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.npz", inputs=member(np.zeros(10**7, dtype=np.uint8)), targets=member(TARGETS))
    assert path.stat().st_size < 10**5
    with pytest.raises(StoreError, match="bomb"):
        read_npz(path, at_most=1000)


def test_other_and_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", zipfile.ZIP_STORED, inputs=member(INPUTS), targets=member(TARGETS))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[whole.index(INPUTS.tobytes()) + 1] ^= 0xFF
    for content in (b"", b"nothing", whole[:-30], damaged):
        path.write_bytes(content)
        with pytest.raises(StoreError, match=r"a\.npz"):
            read_npz(path)
    with pytest.raises(StoreError, match=r"\['x', 'z'\], not inputs and targets or x and y"):
        read_npz(archive(path, x=member(INPUTS), z=member(TARGETS)))


IMAGES = idx_bytes(2, 2, 2, numbers=bytes(range(8)))


@pytest.mark.parametrize("kind, code", [(8, "u1"), (9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_idx_files_of_every_type_are_read(tmp_path: Path, kind: int, code: str) -> None:
    numbers = np.array([[1, 0], [100, 7]], dtype=code)
    path = tmp_path / "numbers"
    path.write_bytes(gzip.compress(idx_bytes(2, 2, numbers=numbers.tobytes(), kind=kind)))
    read = read_idx(path)
    assert read.tolist() == numbers.tolist()
    assert read.dtype.isnative


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(b"", id="empty"),
        pytest.param(IMAGES[:3], id="ends in the magic"),
        pytest.param(IMAGES[:9], id="ends in the header"),
        pytest.param(IMAGES[:-1], id="ends in the numbers"),
        pytest.param(IMAGES + b"\0", id="goes on"),
        pytest.param(b"\1" + IMAGES[1:], id="other magic"),
        pytest.param(bytes([0, 0, 0x08, 0, 1]), id="no axes"),
        pytest.param(bytes([0, 0, 0x07, 1]) + bytes(4), id="unknown type"),
        pytest.param(bytes([0, 0, 0x08, 255]) + bytes(4 * 255), id="too many axes"),
        pytest.param(idx_bytes(2**31, 2**31, 2**31, numbers=b"1"), id="more than any memory"),
        pytest.param(idx_bytes(2**32 - 1, 0, numbers=b""), id="billions of records with nothing in them"),
    ],
)
def test_a_hostile_idx_file_is_refused(damaged: bytes) -> None:
    with pytest.raises(StoreError, match="hostile"):
        parse_idx(bytearray(damaged), path=Path("hostile"))


@pytest.mark.parametrize("labels", [(7,), (19, 99)])
def test_cifar_records_have_their_last_label_and_planes_as_channels(labels: tuple[int, ...]) -> None:
    row = bytes(labels) + bytes([1] * 1024 + [2] * 1024 + [3] * 1024)
    records = parse_cifar(bytearray(row * 2), num_labels=len(labels), path=Path("batch.bin"))
    assert records.targets.tolist() == [labels[-1]] * 2
    assert (records.inputs.shape, records.inputs.dtype) == ((2, 3, 32, 32), torch.uint8)
    assert records.inputs[1, :, 5, 6].tolist() == [1, 2, 3]
    with pytest.raises(StoreError, match=r"batch\.bin"):
        parse_cifar(bytearray(row[:-1]), num_labels=len(labels), path=Path("batch.bin"))


GREY = (1, 4, 6)


def test_an_image_is_one_input_and_scaled_only_on_request(tmp_path: Path) -> None:
    pixels = np.arange(72, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(pixels).save(tmp_path / "one.PNG")
    assert read_inputs(tmp_path / "one.PNG", shape=(3, 4, 6)).equal(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    Image.new("RGB", (32, 24)).save(tmp_path / "large.jpg")
    with pytest.raises(InvalidValue, match="4 × 6 pixels"):
        read_inputs(tmp_path / "large.jpg", shape=GREY)
    assert read_inputs(tmp_path / "large.jpg", shape=GREY, resize=True).shape == (1, *GREY)
    with pytest.raises(InvalidValue, match="shape"):
        read_inputs(tmp_path / "large.jpg", shape=(24,))


@pytest.mark.parametrize("name", ["inputs", "x", "images"])
def test_inputs_of_npz_files_are_found_with_or_without_a_channel(tmp_path: Path, name: str) -> None:
    image = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for stored in (image[None], image[None, None]):
        np.savez(tmp_path / "one.npz", **{name: stored})  # type: ignore[arg-type]
        assert read_inputs(tmp_path / "one.npz", shape=GREY).equal(torch.from_numpy(image)[None, None])


@pytest.mark.parametrize("name", ["no.png", "no.npz", "no-idx3-ubyte"])
@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind", b"PK\x03\x04 and then"])
def test_an_input_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(StoreError, match=name):
        read_inputs(tmp_path / name, shape=GREY)
