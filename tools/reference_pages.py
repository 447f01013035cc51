"""The pages of the reference: which there are, and what each asks mkdocstrings to show.

The map in the docstring of ``lehr`` says which modules there are, in reading order. What a package offers is described
once, where it is made, and linked from its top.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import lehr

FOLDER = "reference/"
PUBLIC_NAMES = f"{FOLDER}public_names.md"
PACKAGE = Path(__file__).resolve().parent.parent / "src" / "lehr"
# Nobody imports from these: each is a command, and has pages of its own.
WITHOUT_MEMBERS = ("cli", "papers")

_MAP_LINE = re.compile(r"^ {8}(?P<module>\w+) +(?:● )?(?P<says>.+)$", flags=re.MULTILINE)
# Optional: not every constant is described.
_LINK = '<autoref optional identifier="{}"><code>{}</code></autoref>'
_FIRST = """# Reference

Taken from the docstrings. Most programs need only the [names of `lehr` itself](public_names.md). The rest is for
whoever composes a method or reads the code, and stands in reading order: a module imports only what stands above it.

| module | what is in it |
|---|---|
"""


def pages() -> dict[str, str]:
    """The Markdown of every page, by its address."""
    rows = "".join(f"| [`lehr.{name}`]({name}.md) | {says} |\n" for name, says in mapped_modules().items())
    made = {f"{FOLDER}index.md": _FIRST + rows, PUBLIC_NAMES: _public_names()}
    return made | {f"{FOLDER}{name}.md": _of_module(name) for name in mapped_modules()}


def mapped_modules() -> dict[str, str]:
    """The modules in reading order, each with what the map says about it."""
    return {found["module"]: found["says"] for found in _MAP_LINE.finditer(lehr.__doc__ or "")}


def offered(package: Path) -> dict[str, str]:
    """What the file of a package imports for others to import from it, and the full name of each."""
    if not (package / "__init__.py").exists():
        return {}
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.module is not None and node.module.startswith("lehr.")]
    return {alias.name: f"{node.module}.{alias.name}" for node in ours for alias in node.names}


def _public_names() -> str:
    names = [name for name in lehr.__all__ if not name.startswith("_")]
    functions_first = sorted(names, key=lambda name: (name[0].isupper(), name))
    shown = "\n\n".join(f"::: lehr.{name}" for name in functions_first)
    return f"# Public names\n\nWhat `import lehr` offers.\n\n{shown}\n"


def _of_module(name: str) -> str:
    options = ["show_root_heading: false", "show_root_toc_entry: false", "show_submodules: true"]
    if name in WITHOUT_MEMBERS:
        options.append("members: false")
    elif modules := sorted(_modules_in(PACKAGE / name)):
        options.append(f"members: {modules}")
    lines = "".join(f"      {option}\n" for option in options)
    return f"# lehr.{name}\n\n{_from(name)}::: lehr.{name}\n    options:\n{lines}"


def _from(name: str) -> str:
    links = ", ".join(_LINK.format(home, word) for word, home in sorted(offered(PACKAGE / name).items()))
    return f"`from lehr.{name} import` {links}\n\n" if links else ""


def _modules_in(package: Path) -> Iterator[str]:
    for found in package.glob("*"):
        if not found.name.startswith("_") and (found.suffix == ".py" or (found / "__init__.py").exists()):
            yield found.stem
