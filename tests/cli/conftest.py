"""The real command, run in this process, in an empty folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from lehr import networks
from lehr.certificates.release import release
from lehr.cli.main import app
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.training import earlier_fits
from tests.training.tiny import PRIVATE, TEST
from tests.written_runs import configuration, write_run

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def lehr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> Result:
        earlier_fits.forget()  # a command is a process of its own
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
        return result

    return run


@pytest.fixture
def lehr_json(lehr: Run) -> RunJson:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        shape = json.loads(lehr(*arguments, "--json", code=code).stdout)
        assert isinstance(shape, dict)
        return shape

    return run


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    return write_plan(tmp_path / "plan.json")


def write_plan(path: Path, **changed: Any) -> str:
    usual: dict[str, Any] = {"noise_multiplier": 2.0, "steps": 1000, "expected_batch_size": 512, "records": 60_000}
    strict_json.write(path, Plan(delta=1e-5, **{**usual, **changed}).to_json())
    return path.name


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Records of our own, in files."""
    write_records(tmp_path)
    return tmp_path


def write_records(folder: Path) -> None:
    for name, (inputs, targets) in {"private": PRIVATE, "test": TEST}.items():
        np.savez(folder / f"{name}.npz", inputs=inputs.numpy(), targets=targets.numpy())


def released_model(folder: Path, **data: Any) -> str:
    """A released model of a network that the command can build by itself, for images of one channel, 8 × 8."""
    config = configuration(model={"network": "small_cnn", "arguments": {}}, data={"num_classes": 10, **data})
    files = write_run(folder / "released", config=config, model=networks.build("small_cnn"))
    release(files.directory, folder / "model")
    return "model"
