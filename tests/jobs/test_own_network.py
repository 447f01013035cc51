"""Train a network of one's own on the command line; nothing but the option makes Lehr import it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lehr
from lehr.certificates import released_model
from lehr.cli.main import app
from lehr.run.folder import read_config
from lehr.training import earlier_fits
from tests.training.tiny import PRIVATE

CODE = """
from pathlib import Path
from torch import nn

Path("imported").touch()

def make(num_classes, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.Tanh(), nn.Linear(width, num_classes))

def nothing():
    return 1
"""
TRAIN = "--npz records.npz --records 48 --num-classes 3 --noise-multiplier 1 --steps 2 --batch-size 8 --no-compile -q"
Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    Path("my_networks.py").write_text(CODE)
    inputs, targets = PRIVATE
    np.savez("records.npz", inputs=inputs.numpy(), targets=targets.numpy())

    def invoke(*words: str, code: int = 0) -> Any:
        earlier_fits.forget()  # a command is a process of its own
        sys.modules.pop("my_networks", None)
        Path("imported").unlink(missing_ok=True)
        result = CliRunner().invoke(app, [part for word in words for part in word.split()])
        assert result.exit_code == code, f"{result.output}{result.exception!r}"
        return result

    yield invoke
    sys.modules.pop("my_networks", None)


def test_train_resume_and_release_a_network_of_your_own(run: Run) -> None:
    network = "--network my_networks:make"
    run("train", TRAIN, network, "--set model.width=5 --seed 1 --settings-chosen-on fixed --run mine")
    described = read_config(Path("mine"))["model"]
    assert (described["network"], described["trained"]["1.weight"]) == (None, [5, 16])
    assert str(Path.cwd()) not in sys.path
    for command in ("report mine", "release mine --to model", "certificate check model/certificate.json"):
        run(command)
        assert not Path("imported").exists()
    assert "released_model.load" in run("evaluate model --npz records.npz", code=2).stderr
    assert not Path("imported").exists()
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = __import__("my_networks").make
    finally:
        sys.path.pop(0)
    assert released_model.load("model", model=make(3, width=5)) is not None


def test_a_resumed_run_needs_the_option_again(run: Run) -> None:
    run("train", TRAIN, "--network my_networks:make --run mine")
    resumed = ("train --resume mine --npz records.npz -q --no-compile",)
    assert "--network package.module:factory" in run(*resumed, code=2).stderr
    assert not Path("imported").exists()
    run(*resumed, "--network my_networks:make")
    assert "width" not in str(read_config(Path("mine"))["model"])


def test_a_file_never_decides_which_code_runs(run: Run) -> None:
    Path("run.toml").write_text('[model]\nnetwork = "my_networks:make"\n')
    for words in ("run.toml", '--set model.network="my_networks:make"'):
        assert "--network package.module:factory" in run("train", TRAIN, words, "--run mine", code=2).stderr
        assert not Path("imported").exists()
    with pytest.raises(lehr.InvalidValue, match="pass your own module"):
        lehr.fit("my_networks:make", "digits", epsilon=8)


@pytest.mark.parametrize("wrong", ["my_networks:nothing", "my_networks:other", "my_other:make", "my_networks:"])
def test_what_is_no_factory_is_refused(run: Run, wrong: str) -> None:
    result = run("train", TRAIN, "--run mine --network", wrong, code=2)
    assert result.stderr.startswith("lehr: network must be ")
    assert not Path("mine").exists()
