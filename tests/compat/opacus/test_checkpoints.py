from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.compat.opacus import checkpoints
from lehr.errors import DamagedFile, InvalidValue
from tests.compat.opacus.loops import private, take_steps


def test_a_file_that_may_hold_code_is_not_read(tmp_path: Path) -> None:
    torch.save({"module_state_dict": torch.nn.Linear(1, 1)}, tmp_path / "code.pt")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoints.read(tmp_path / "code.pt")
    with pytest.raises(InvalidValue, match="weights_only"):
        checkpoints.read(tmp_path / "code.pt", weights_only=False)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(DamagedFile, match="privacy_accountant_state_dict"):
        checkpoints.read(tmp_path / "other.pt")


def test_no_kind_of_step_is_forgotten() -> None:
    merged = checkpoints.no_fewer_steps({"history": [(1.0, 0.1, 5), (2.0, 0.1, 3)]}, [(1.0, 0.1, 2), (1.0, 0.1, 4)])
    assert sorted(merged["history"]) == [(1.0, 0.1, 6), (2.0, 0.1, 3)]


def test_open_files_are_read_and_written() -> None:
    loop = private()
    file = io.BytesIO()
    loop.engine.save_checkpoint(path=file, module=loop.model)
    file.seek(0)
    assert "optimizer_state_dict" not in loop.engine.load_checkpoint(path=file, module=loop.model)


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.01,
    "unclipped_num_std": 2.0,
}


@pytest.mark.parametrize("options, clip_norm", [({}, 1.0), (ADAPTIVE, 0.4)], ids=["flat", "adaptive"])
def test_noise_stays_as_it_was_told_and_only_what_was_learnt_goes_on(options: dict[str, Any], clip_norm: float) -> None:
    loop, later = private(noise_multiplier=2.0, **options), private(**options)
    loop.optimizer.max_grad_norm = 0.4
    file = io.BytesIO()
    loop.engine.save_checkpoint(path=file, module=loop.model, optimizer=loop.optimizer)
    file.seek(0)
    later.engine.load_checkpoint(path=file, module=later.model, optimizer=later.optimizer)
    assert (later.optimizer.noise_multiplier, later.optimizer.max_grad_norm) == (1.0, clip_norm)


def test_the_steps_of_another_training_are_counted_beside_ones_own() -> None:
    loop, other = private(), private()
    file = io.BytesIO()
    take_steps(other, 3)
    other.engine.save_checkpoint(path=file, module=other.model)
    take_steps(loop, 2)
    for _ in range(2):
        file.seek(0)
        loop.engine.load_checkpoint(path=file, module=loop.model)
        assert len(loop.engine.accountant) == 5
    file.seek(0)
    loop.engine.save_checkpoint(path=file, module=loop.model)
    take_steps(loop, 1)
    file.seek(0)
    loop.engine.load_checkpoint(path=file, module=loop.model)
    assert len(loop.engine.accountant) == 6
