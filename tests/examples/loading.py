"""An example as a module. Packages of others call themselves ``examples`` too, so it is loaded by its path."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def example(name: str, *, needs: str = "matplotlib") -> Any:
    """The example of this name; its tests are skipped if the package that it needs is missing."""
    pytest.importorskip(needs)
    spec = spec_from_file_location(f"lehr_example_{name.replace('/', '_')}", ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_main(module: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run an example as a script with these arguments."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    module.main()
