from __future__ import annotations

import ast
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest

import lehr

PACKAGE = Path(lehr.__file__).parent


def imports_for_type_checkers() -> dict[str, str]:
    """Each name that a type checker sees, and its module."""
    tree = ast.parse(inspect.getsource(lehr))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_public_names_are_sorted_unique_and_found_by_type_checkers() -> None:
    assert lehr.__all__ == sorted(set(lehr.__all__))
    assert imports_for_type_checkers() == lehr._HOME
    assert {*lehr._HOME, "__version__"} == set(lehr.__all__)


def test_public_names_can_be_imported_and_others_cannot() -> None:
    for name in lehr.__all__:
        assert getattr(lehr, name) is not None
        assert name in dir(lehr)
    with pytest.raises(AttributeError, match="nonsense"):
        lehr.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert lehr.__version__ == version("lehr")


def test_the_map_in_the_docstring_names_every_module_at_the_top_of_the_package() -> None:
    there = {path.stem for path in PACKAGE.glob("[a-z]*") if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = set(re.findall(r"^ {8}(\w+) {2,}\S", lehr.__doc__ or "", flags=re.MULTILINE))
    assert named == there
