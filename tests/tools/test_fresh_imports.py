from __future__ import annotations

from pathlib import Path

import pytest

from tools.fresh_imports import heavy_imports, modules_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A package beside a stand-in for torch, which only ``pretend.deep.heavy`` imports."""
    (tmp_path / "torch.py").write_text("")
    (tmp_path / "pretend" / "deep").mkdir(parents=True)
    for name in ("__init__", "__main__", "light", "deep/__init__"):
        (tmp_path / "pretend" / f"{name}.py").write_text("")
    (tmp_path / "pretend" / "deep" / "heavy.py").write_text("def later() -> None: ...\n\n\nimport torch\n")
    return tmp_path


def test_a_module_that_imports_torch_is_named(folder: Path) -> None:
    modules = modules_of(folder / "pretend")
    assert modules == ("pretend", "pretend.deep", "pretend.deep.heavy", "pretend.light")  # not __main__
    assert heavy_imports(modules, watched=["torch", "numpy"], search_path=folder) == {"torch": "pretend.deep.heavy"}
    light = ["pretend", "pretend.deep", "pretend.light"]
    assert heavy_imports(light, watched=["torch", "numpy"], search_path=folder) == {}


def test_a_module_that_cannot_be_imported_is_an_error(folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"pretend\.gone"):
        heavy_imports(["pretend.gone"], watched=["torch"], search_path=folder)
