"""A checkpoint: whole or not there, and no code in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lehr.errors import DamagedFile, StoreError
from lehr.privacy.rng import RunKey
from lehr.run import checkpoint
from lehr.run.checkpoint import FORMAT, KEPT, Checkpoint

KEY = RunKey(bytes(range(32)))
TENSORS = {
    "model/weight": torch.tensor([[1.5, -0.0, float("1e-45")]]),
    "model/shared": torch.arange(6, dtype=torch.float64).view(2, 3).t(),
    "optimizer/weight/step": torch.tensor(3, dtype=torch.int64),
    "half": torch.tensor([1.0], dtype=torch.bfloat16),
}


def at(step: int) -> Checkpoint:
    return Checkpoint(step=step, accepted=step, attempt=2, tensors=TENSORS, numbers={"acceptance": {"q": 0.1}})


def test_round_trip(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, at(7), KEY)
    found = checkpoint.latest(tmp_path, KEY)
    assert found is not None
    assert (found.step, found.accepted, found.attempt) == (7, 7, 2)
    assert found.numbers == {"acceptance": {"q": 0.1}}
    for name, value in TENSORS.items():
        assert found.tensors[name].dtype is value.dtype
        assert torch.equal(found.tensors[name], value)


def test_newest_is_read_and_old_ones_are_deleted(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        checkpoint.write(tmp_path, at(step), KEY)
    found = checkpoint.latest(tmp_path, KEY)
    assert found is not None
    assert found.step == 11
    assert len(list(tmp_path.iterdir())) == KEPT


def test_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path, KEY) is None


def test_truncated_or_foreign_file(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, at(1), KEY)
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=file.name):
        checkpoint.latest(tmp_path, KEY)
    save_file({"a": torch.zeros(1)}, file)
    with pytest.raises(DamagedFile, match=file.name):
        checkpoint.latest(tmp_path, KEY)
    file.write_bytes(b"\x80\x04\x95not a pickle")
    with pytest.raises(DamagedFile, match=file.name):
        checkpoint.latest(tmp_path, KEY)


@pytest.mark.parametrize("wrong", [{"step": -1}, {"step": "7"}, {"surplus": 1}, {"accepted": None}])
def test_header_with_other_fields(tmp_path: Path, wrong: dict[str, object]) -> None:
    text = json.dumps({"step": 1, "accepted": 1, "attempt": 0, "numbers": {}, **wrong})
    tensors = {"a": torch.zeros(1)}
    sealed = f"{checkpoint._seal(KEY, text, tensors)} {text}"
    save_file(tensors, tmp_path / "step-1.safetensors", metadata={FORMAT: sealed})
    with pytest.raises(DamagedFile, match=next(iter(wrong))):
        checkpoint.latest(tmp_path, KEY)


def test_unwritable_checkpoint_folder(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, at(1), KEY)
    with pytest.raises(StoreError, match="nowhere"):
        checkpoint.write(tmp_path / "nowhere", at(2), KEY)
    assert len(list(tmp_path.iterdir())) == 1


def test_checkpoint_of_another_run_or_changed(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, at(1), RunKey(bytes(32)))
    with pytest.raises(DamagedFile, match="this run wrote"):
        checkpoint.latest(tmp_path, KEY)
    checkpoint.write(tmp_path, at(1), KEY)
    [file] = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFile, match="this run wrote"):
        checkpoint.latest(tmp_path, KEY)


def test_equal_checkpoints_are_equal_files(tmp_path: Path) -> None:
    contents = set()
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        checkpoint.write(tmp_path / str(number), at(1), KEY)
        [file] = (tmp_path / str(number)).iterdir()
        contents.add(file.read_bytes())
    assert len(contents) == 1
