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
    """Each name that the type checker sees, and the module it is told to look in."""
    tree = ast.parse(inspect.getsource(lehr))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in found for alias in node.names}


def test_public_names_are_sorted_and_said_once() -> None:
    assert lehr.__all__ == sorted(set(lehr.__all__))


def test_type_checkers_and_python_find_the_same_names_in_the_same_places() -> None:
    assert imports_for_type_checkers() == lehr._HOME
    assert {*lehr._HOME, "__version__"} == set(lehr.__all__)


@pytest.mark.parametrize("name", lehr.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(lehr, name) is not None
    assert name in dir(lehr)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'lehr' has no attribute 'nonsense'"):
        lehr.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_the_installed_one() -> None:
    assert lehr.__version__ == version("lehr")


def test_the_map_in_the_docstring_names_every_module_at_the_top_of_the_package() -> None:
    there = {path.stem for path in PACKAGE.glob("[a-z]*") if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = set(re.findall(r"^ {8}(\w+) {2,}\S", lehr.__doc__ or "", flags=re.MULTILINE))
    assert named == there
