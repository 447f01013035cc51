"""An editable installation sees every file of the checkout; what others install is the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that was built from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    [wheel] = folder.glob("*.whl")
    return set(ZipFile(wheel).namelist())


def made_by_a_tool(name: str) -> bool:
    return name == "__pycache__" or name.endswith("_cache")


def test_the_wheel_holds_every_file_of_the_package(names: set[str]) -> None:
    found = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "lehr").rglob("*") if path.is_file())
    there = {str(path) for path in found if not any(made_by_a_tool(part) for part in path.parts)}
    assert {name for name in names if name.startswith("lehr/")} == there


def test_the_wheel_tells_type_checkers_that_it_is_typed(names: set[str]) -> None:
    assert "lehr/py.typed" in names


def test_the_wheel_holds_the_proofs_and_the_licence(names: set[str]) -> None:
    assert any(name.endswith(".proof.md") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
