"""The layers in pyproject.toml, tried on a throw-away package of the same shape."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty ``lehr`` with a module for every room, under the same contracts."""
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text(encoding="utf-8"))
    (tmp_path / "lehr").mkdir()
    (tmp_path / "lehr" / "__init__.py").write_text("")
    for name in " | ".join(contracts[0]["layers"]).split(" | "):
        (tmp_path / "lehr" / f"{name}.py").write_text("")
    return tmp_path


def verdict(project: Path) -> tuple[bool, str]:
    """Whether the contracts hold, and what import-linter said."""
    finished = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    return finished.returncode == 0, finished.stdout + finished.stderr


def test_a_package_that_keeps_the_order_passes(project: Path) -> None:
    (project / "lehr" / "cli.py").write_text("import lehr.planning\n")
    assert verdict(project)[0]


def test_a_module_that_no_layer_names_is_refused(project: Path) -> None:
    (project / "lehr" / "stray.py").write_text("")
    holds, said = verdict(project)
    assert not holds
    assert "stray" in said


def test_an_import_against_the_order_is_refused(project: Path) -> None:
    (project / "lehr" / "accounting.py").write_text("import lehr.planning\n")
    holds, said = verdict(project)
    assert not holds
    assert "lehr.accounting" in said
    assert "lehr.planning" in said
