"""Scripts of transformers users: running one again, and resuming it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue

transformers = pytest.importorskip("transformers")
from transformers import TrainerCallback, TrainingArguments  # noqa: E402

from lehr.integrations.transformers import LehrTrainer, PrivacyConfig  # noqa: E402

STEPS = 2


class BagOfWords(nn.Module):
    """A model that is checked within milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        return {"logits": self.head(self.words(input_ids).mean(1))}


class Stop(TrainerCallback):
    """Ends the process of a user after the first checkpoint."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt


def a_script(folder: Path, *, callbacks: Any = (), checkpoint: Path | bool | None = None, **terms: Any) -> LehrTrainer:
    sentences = [{"input_ids": torch.tensor([2 + index % 7, 3]), "labels": index % 2} for index in range(40)]
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "max_steps": STEPS, "use_cpu": True}
    settings |= {"per_device_train_batch_size": 10, "report_to": [], "disable_tqdm": True}
    trainer = LehrTrainer(
        model=BagOfWords(),
        args=TrainingArguments(output_dir=str(folder / "out"), **settings),
        train_dataset=sentences,
        privacy=PrivacyConfig(noise_multiplier=1.0, delta=1e-3, records=40, **terms),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if isinstance(checkpoint, Path) else checkpoint)
    return trainer


@pytest.mark.parametrize("checkpoint", [None, True], ids=["by its path", "the last one"])
def test_the_same_script_again_is_a_new_run_that_can_be_resumed(checkpoint: bool | None, tmp_path: Path) -> None:
    a_script(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        a_script(tmp_path, callbacks=[Stop()])
    resumed = a_script(tmp_path, checkpoint=checkpoint or tmp_path / "out" / "checkpoint-1")
    assert resumed.privacy.directory == tmp_path / "out-privacy-2"
    assert {path.name for path in tmp_path.iterdir()} == {"out", "out-privacy", "out-privacy-2"}
    assert read_run(tmp_path / "out-privacy").steps_charged == STEPS
    assert read_run(tmp_path / "out-privacy-2").steps_charged == STEPS


def test_a_run_without_a_checkpoint_is_not_resumed_from_an_older_one(tmp_path: Path) -> None:
    a_script(tmp_path)
    (tmp_path / "out-privacy-2").mkdir()  # stopped before its first checkpoint
    with pytest.raises(InvalidValue) as error:
        a_script(tmp_path, checkpoint=True)
    assert error.value.name == "resume_from_checkpoint"


def test_a_folder_of_the_users_own_is_not_used_twice(tmp_path: Path) -> None:
    directory = tmp_path / "mine"
    directory.mkdir()
    (directory / "config.json").touch()
    with pytest.raises(InvalidValue, match="resume_from_checkpoint") as error:
        a_script(tmp_path, directory=directory)
    assert (error.value.name, error.value.given) == ("directory", str(directory))
