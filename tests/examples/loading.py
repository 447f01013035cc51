"""An example as a module. Packages of others call themselves ``examples`` too, so it is loaded by its path."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def example(name: str) -> Any:
    """The example of this name; where matplotlib is missing, the tests of it are skipped."""
    pytest.importorskip("matplotlib")
    spec = spec_from_file_location(f"lehr_example_{name}", ROOT / f"examples/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
