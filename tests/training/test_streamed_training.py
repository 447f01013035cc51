"""Training on folders that stay on the disk, against training on the same pixels in memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lehr import fit
from lehr.attacks import final_model
from lehr.data import InMemory, image_folder
from lehr.data.decoding import DecoderPool, versions
from lehr.data.image_folder import StreamedFolder
from lehr.data.split import Split
from lehr.errors import InvalidValue, StoreError
from lehr.privacy.rng import RunKey
from lehr.run.shape import Callback, Progress, RunFiles
from lehr.training.ending import Run
from tests.data.picture_folders import replace_unseen, spoil, write

KEY = RunKey(bytes(range(32)))
SIDE = 6
TWO = DecoderPool(2)


def streamed(folder: Path, *, decoders: DecoderPool | None = None) -> StreamedFolder:
    return image_folder.stream_image_folder(folder, image_side=SIDE, channels=1, workers=decoders or 0)


def held(records: StreamedFolder) -> InMemory:
    return InMemory(*records.batch(torch.arange(len(records))))


def model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    write(folder / "train", 200, seed=1)
    write(folder / "test", 60, seed=2)
    return folder


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """A short run under one key, in a folder named after what is given."""
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)

    def run(name: str, data: object, **changed: Any) -> Run:
        usual = {"records": 200, "steps": 5, "expected_batch_size": 40, "physical_batch": 16, "noise_multiplier": 1.0}
        said: dict[str, Any] = {**usual, **changed}
        return fit(
            said.pop("model", None) or model(),
            data,
            num_classes=3,
            delta=1e-4,
            compiled=False,
            quiet=True,
            directory=tmp_path / name,
            **said,
        )

    return run


def weights(run: Run) -> Tensor:
    return torch.cat([value.flatten() for value in load_file(run.directory / "model.safetensors").values()])


def test_streamed_training_equals_training_in_memory(pictures: Path, trained: Callable[..., Run]) -> None:
    records, test = (streamed(pictures / part) for part in ("train", "test"))
    expected = trained("in memory", held(records), test=held(test), augmentation="flip_crop", views=2)
    for name, decoders in {"alone": None, "two workers": TWO}.items():
        parts = [streamed(pictures / part, decoders=decoders) for part in ("train", "test")]
        found = trained(name, parts[0], test=parts[1], augmentation="flip_crop", views=2)
        assert weights(found).equal(weights(expected))
        assert [row.to_json() for row in found.evaluations] == [row.to_json() for row in expected.evaluations]


def test_large_folder_equals_training_in_memory(tmp_path: Path, trained: Callable[..., Run]) -> None:
    folder = write(tmp_path / "many", 3000, seed=4)
    expected = trained("in memory", held(streamed(folder)), records=3000, expected_batch_size=500, physical_batch=128)
    found = trained(
        "streamed", streamed(folder, decoders=TWO), records=3000, expected_batch_size=500, physical_batch=128
    )
    assert weights(found).equal(weights(expected))


class Kill(Callback):
    """Kills the worker processes after a step."""

    def __init__(self, decoders: DecoderPool, *, after: int) -> None:
        self.decoders, self.after = decoders, after
        self.reason = ""

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.after:
            for pid in self.decoders.pids():
                os.kill(pid, signal.SIGKILL)

    def ended(self, end: Any) -> None:
        self.reason = end.reason


def test_run_with_killed_workers_resumes_bit_for_bit(pictures: Path, trained: Callable[..., Run]) -> None:
    records = streamed(pictures / "train", decoders=TWO)
    expected = trained("whole", streamed(pictures / "train"))
    kill = Kill(TWO, after=2)
    with pytest.raises(StoreError, match="a worker process that decodes its images ended"):
        trained("killed", records, callbacks=[kill], checkpoint_seconds=0)
    assert kill.reason == f"cannot read {pictures / 'train'}: a worker process that decodes its images ended"
    found = trained("killed", records, resume=True)
    assert weights(found).equal(weights(expected))
    assert found.end.epsilon_spent == expected.end.epsilon_spent


def test_changed_folder_is_not_resumed(tmp_path: Path, trained: Callable[..., Run]) -> None:
    folder = write(tmp_path / "train", 200, seed=1)
    trained("run", streamed(folder))
    os.utime(folder / "class0" / "00000.jpg", ns=(1, 1))
    with pytest.raises(InvalidValue, match="data"):
        trained("run", streamed(folder), resume=True)


def test_changed_bytes_of_the_same_size_and_time_are_not_resumed(tmp_path: Path, trained: Callable[..., Run]) -> None:
    """Steps that are taken again have the noise of the first time: with other records it could be subtracted."""
    folder = write(tmp_path / "train", 200, seed=1)
    trained("run", streamed(folder))
    replace_unseen(folder / "class0" / "00000.jpg")
    with pytest.raises(InvalidValue, match="data"):
        trained("run", streamed(folder), resume=True)


def test_unreadable_image_counts_as_nothing(tmp_path: Path, trained: Callable[..., Run]) -> None:
    folder = write(tmp_path / "train", 200, seed=1)
    spoil(folder, name="class1/00103a.png")
    records = streamed(folder)
    [place] = records.not_images()
    assert place not in records.sample(64).indices  # else it would have been found before the run
    everybody: dict[str, Any] = {"expected_batch_size": 200, "steps": 2, "noise_multiplier": 0.01}

    def linear() -> nn.Module:  # with nothing drawn for a record by its place
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 3))

    without = held(records.at(torch.tensor([other for other in range(201) if other != place])))
    expected = weights(trained("without", without, model=linear(), **everybody))
    black = weights(trained("black", held(records), model=linear(), **everybody))
    for name, decoders in {"alone": None, "two workers": TWO}.items():
        found = weights(trained(name, streamed(folder, decoders=decoders), model=linear(), **everybody))
        assert torch.allclose(found, expected, atol=1e-6)
        assert not torch.allclose(found, black, atol=1e-5)


def test_held_out_records_are_streamed(pictures: Path, trained: Callable[..., Run]) -> None:
    records = streamed(pictures / "train")
    run = trained("run", records, held_out_fraction=0.3, evaluate_every=5)
    [row] = run.evaluations
    assert row.on.startswith("held-out records, noised")


def test_acceptance_uses_a_part_of_streamed_test_records(pictures: Path, trained: Callable[..., Run]) -> None:
    run = trained("run", streamed(pictures / "train"), test=streamed(pictures / "test"), method="sa-dpsgd")
    parts = Split.load(RunFiles(run.directory).split)
    assert 0 < len(parts.public) < 60
    assert len(parts.public) + len(parts.private) == 60


def test_training_records_are_refused_as_test_records(pictures: Path, trained: Callable[..., Run]) -> None:
    with pytest.raises(InvalidValue, match="test"):
        trained("run", streamed(pictures / "train"), test=streamed(pictures / "train"))


def test_streamed_records_cannot_be_audited(pictures: Path, trained: Callable[..., Run]) -> None:
    records, test = (streamed(pictures / part) for part in ("train", "test"))
    run = trained("run", records, test=test, steps=1)
    with pytest.raises(InvalidValue, match="data must be records that are held in memory"):
        final_model.attack_run(run.directory, records, test=test, model=model())


def test_decoder_versions_are_part_of_the_environment(
    pictures: Path, tmp_path: Path, trained: Callable[..., Run]
) -> None:
    records = streamed(pictures / "train")
    trained("run", records, steps=2)
    attempts = RunFiles(tmp_path / "run").attempts.read_text(encoding="utf-8")
    assert f'"decoders": "{versions()}"' in attempts
    trained("held", held(records), steps=2)
    assert "decoders" not in RunFiles(tmp_path / "held").attempts.read_text(encoding="utf-8")
