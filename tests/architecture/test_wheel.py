"""An editable installation sees every file of the checkout; what others install is the wheel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path], cwd=ROOT, check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(ZipFile(wheel).namelist())
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src" / "lehr").rglob("*") if path.is_file())
    expected = {str(path) for path in files if not any(part.endswith(("__pycache__", "_cache")) for part in path.parts)}
    assert {name for name in names if name.startswith("lehr/")} == expected
    assert "lehr/py.typed" in names  # for type checkers
    assert any(name.endswith(".proof.md") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
