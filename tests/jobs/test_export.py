"""A released model outside Lehr: exported by torch, and to ONNX, and run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lehr.certificates import released_model
from lehr.certificates.release import release
from tests.written_runs import configuration, small_model, write_run

INPUTS = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released model whose records are normalised."""
    where = tmp_path_factory.mktemp("released")
    config = configuration(data={"preparation": {"mean": [0.3], "std": [0.4]}})
    run = write_run(where / "run", config=config)
    return release(run.directory, where / "model").directory


@pytest.fixture(scope="module")
def probabilities(folder: Path) -> Tensor:
    """What Lehr itself predicts."""
    return released_model.predict(folder, INPUTS, small_model()).probabilities


@pytest.fixture(scope="module")
def exported(folder: Path) -> torch.export.ExportedProgram:
    model = released_model.load(folder, small_model(), prepares=True)
    any_number = ({0: torch.export.Dim.DYNAMIC},)  # of records
    return torch.export.export(model, (torch.zeros(2, 1, 8, 8),), dynamic_shapes=any_number)


def test_torch_export(exported: torch.export.ExportedProgram, probabilities: Tensor, tmp_path: Path) -> None:
    torch.export.save(exported, tmp_path / "model.pt2")
    scores = torch.export.load(tmp_path / "model.pt2").module()(INPUTS)
    torch.testing.assert_close(scores.softmax(dim=1).double(), probabilities, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_onnx(exported: torch.export.ExportedProgram, probabilities: Tensor, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    program = torch.onnx.export(exported, dynamo=True, verbose=False)
    assert program is not None
    program.save(str(tmp_path / "model.onnx"))
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    [scores] = session.run(None, {session.get_inputs()[0].name: INPUTS.numpy()})
    torch.testing.assert_close(torch.from_numpy(scores).softmax(dim=1).double(), probabilities, rtol=1e-5, atol=1e-6)
