"""The layers in pyproject.toml, tried on an empty package of the same shape."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize(
    "module, source, names",
    [
        ("cli", "import lehr.planning\n", None),
        ("stray", "", ("stray",)),  # a module that no layer names
        ("accounting", "import lehr.planning\n", ("lehr.accounting", "lehr.planning")),
    ],
    ids=["in order", "unknown module", "against the order"],
)
def test_only_imports_in_the_order_of_the_layers_pass(
    tmp_path: Path, module: str, source: str, names: tuple[str, ...] | None
) -> None:
    contracts = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.read_text(encoding="utf-8"))
    (tmp_path / "lehr").mkdir()
    for name in ("__init__", *" | ".join(contracts[0]["layers"]).split(" | ")):
        (tmp_path / "lehr" / f"{name}.py").write_text("")
    (tmp_path / "lehr" / f"{module}.py").write_text(source)
    finished = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (finished.returncode == 0) is (names is None)
    assert all(name in finished.stdout + finished.stderr for name in names or ())
