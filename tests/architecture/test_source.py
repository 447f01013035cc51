"""What the source never contains. That these tests can fail is shown in tests/tools/test_source_scan.py."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from tools.source_scan import NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS, NO_TORCHVISION, Rule, findings

ROOT = Path(__file__).parents[2]
# The maker of random numbers needs neither Python's nor numpy's. This one draws nothing: it puts a model's back.
RANDOM_FILES = ("gradients/execution.py",)


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
        pytest.param(NO_TORCHVISION, python_files("src", "experiments", "tests", "tools"), id="torchvision"),
        pytest.param(NO_CODE_FROM_DATA, python_files("src", "experiments", "tools"), id="code from data"),
        pytest.param(NO_LOOSE_RANDOMNESS, python_files("src", excepted=RANDOM_FILES), id="randomness"),
    ],
)
def test_nothing_forbidden_stands_in_the_source(rule: Rule, files: list[Path]) -> None:
    assert [finding for file in files for finding in findings(file, [rule])] == []
