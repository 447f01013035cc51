"""Pages and examples import public names only: what they show is what users copy."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import lehr
from lehr import methods

ROOT = Path(__file__).parents[2]
# Packages whose ``__all__`` lists what is public: names, and modules whose names are public then.
PACKAGES = (
    "accounting",
    "attacks",
    "auditing",
    "certificates",
    "data",
    "extend",
    "integrations",
    "methods",
    "networks",
    "planning",
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def imports(source: str) -> Iterator[tuple[str, str | None]]:
    """The module of every import of Lehr, and the name that is imported from it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lehr":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "lehr")


def code_of(path: Path) -> Iterator[str]:
    """The Python of a file: of a page, its examples, those of the interpreter without their prompts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield text
        return
    for block in FENCE.findall(text):
        said = re.findall(r"^(?:>>>|\.\.\.) ?(.*)$", block, flags=re.MULTILINE)
        yield "\n".join(said) if said else block


def is_public(module: str, name: str | None = None) -> bool:
    """Whether every part of the path is listed by the part before it."""
    package, _, last = module.rpartition(".")
    if package == "lehr":
        listed = last in PACKAGES
    elif module.startswith("lehr.integrations.opacus."):  # the paths of Opacus
        listed = True
    else:
        listed = not package or (is_public(package) and last in import_module(package).__all__)
    if name is None or not listed:
        return listed
    if module == "lehr":
        return name in (*lehr.__all__, *PACKAGES)
    names = getattr(import_module(module), "__all__", None)
    return not name.startswith("_") if names is None else name in names


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_only_public_paths_are_imported(path: Path) -> None:
    wrong = {found for code in code_of(path) for found in imports(code) if not is_public(*found)}
    assert wrong == set()


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_can_be_imported(name: str) -> None:
    module = import_module(f"lehr.{name}")
    for public in getattr(module, "__all__", ()):
        if not hasattr(module, public):
            import_module(f"lehr.{name}.{public}")


def test_a_private_path_is_found() -> None:
    found = list(imports("from lehr.run.loop import Loop\nimport lehr.run"))
    assert found == [("lehr.run.loop", "Loop"), ("lehr.run", None)]
    assert not is_public("lehr.run.loop", "Loop")
    assert not is_public("lehr.run")
    assert not is_public("lehr.accounting.pld", "compose")
    assert not is_public("lehr.auditing", "check_delta")
    assert is_public("lehr.attacks.step_attack", "attack")
    assert is_public("lehr", "fit")


def test_every_method_is_listed() -> None:
    assert {name.replace("-", "_") for name in methods.METHODS} == set(methods.__all__) - {"METHODS", "named"}
