"""What the source never contains. That these tests can fail is shown in tests/tools/test_source_scan.py."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tools.source_scan import NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS, NO_TORCH, NO_TORCHVISION, Rule, findings

ROOT = Path(__file__).parents[2]
# Source files and folders that may import torch, as paths below src/lehr.
TORCH_FILES: tuple[str, ...] = (
    "acceptance/annealed.py",
    "acceptance/salvage.py",
    "asking.py",
    "attempts.py",
    "checkpoint.py",
    "clipping",
    "compat",
    "configuration.py",
    "data",
    "distributed.py",
    "games",
    "gradients",
    "interfaces.py",
    "loop.py",
    "mechanism.py",
    "networks",
    "noise",
    "papers/adadp_prior.py",
    "papers/adadp_times.py",
    "papers/beale.py",
    "papers/linear_regression.py",
    "papers/pretrained.py",
    "papers/running.py",
    "papers/store.py",
    "papers/tan_norms.py",
    "papers/tempered_sigmoids_family.py",
    "papers/tempered_sigmoids_norms.py",
    "papers/training.py",
    "released_model.py",
    "reports/tensorboard.py",
    "rng.py",
    "sampling",
    "scoring.py",
    "search",
    "sharded.py",
    "trainee.py",
    "training",
    "update",
    "voting.py",
)
# The maker of random numbers needs neither Python's nor numpy's. This one draws nothing: it puts a model's back.
RANDOM_FILES = ("gradients/same_draws.py",)


def python_files(*folders: str, excepted: Collection[str] = ()) -> list[Path]:
    allowed = [ROOT / "src" / "lehr" / name for name in excepted]
    assert all(path.exists() for path in allowed)
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    files = [path for path in found if not any(path.is_relative_to(name) for name in allowed)]
    assert files
    return files


@pytest.mark.parametrize(
    "rule, files",
    [
        pytest.param(NO_TORCHVISION, python_files("src", "tests", "tools"), id="torchvision"),
        pytest.param(NO_TORCH, python_files("src", excepted=TORCH_FILES), id="torch"),
        pytest.param(NO_CODE_FROM_DATA, python_files("src", "tools"), id="code from data"),
        pytest.param(NO_LOOSE_RANDOMNESS, python_files("src", excepted=RANDOM_FILES), id="randomness"),
    ],
)
def test_nothing_forbidden_stands_in_the_source(rule: Rule, files: list[Path]) -> None:
    assert [finding for file in files for finding in findings(file, [rule])] == []
