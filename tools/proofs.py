"""A proof quotes the source that it proves, and the quote must still be the source.

A quote in a ``*.proof.md`` is a fenced block whose first line names the object::

    ```python lehr.module:Object.attribute
    def attribute(self): ...
    ```
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

_FENCE = re.compile(r"^```python (?P<name>\S+)\n(?P<source>.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def quotes(proof: str) -> list[tuple[str, str]]:
    """The quotes of a proof, in order: the name of the object, and its source as shown."""
    return [(found["name"], found["source"]) for found in _FENCE.finditer(proof)]


def source_of(name: str) -> str:
    """The current source of ``module:Object.attribute``, dedented."""
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    found: object = module
    for attribute in path.split("."):
        found = inspect.getattr_static(found, attribute)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, cached_property):
        found = found.func
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if inspect.isfunction(inspect.unwrap(found)) or inspect.isclass(found):  # type: ignore[arg-type]
        return textwrap.dedent(inspect.getsource(found))  # type: ignore[arg-type]
    return _assignment(inspect.getsource(module), path)


def problems(proof: Path) -> list[str]:
    """What is wrong with a proof file: no quote, a name that is gone, source that has changed."""
    quoted = quotes(proof.read_text(encoding="utf-8"))
    found = [] if quoted else [f"{proof}: quotes no source"]
    for name, source in quoted:
        try:
            current = source_of(name)
        except (ImportError, AttributeError, OSError, LookupError) as error:
            found.append(f"{proof}: {name} cannot be found: {error}")
            continue
        if source != current:
            found.append(f"{proof}: {name} is not as quoted; it is now\n{current}")
    return found


def mechanisms_without_proof(mechanisms: Iterable[str], *, package: Path) -> list[str]:
    """The mechanisms, as paths below the package, that are gone or have no proof of the same name beside them."""
    paths = {name: package / name for name in mechanisms}
    return [name for name, path in paths.items() if not path.is_file() or not path.with_suffix(".proof.md").is_file()]


def _assignment(source: str, name: str) -> str:
    """The statement that assigns a constant, which has no source of its own."""
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return "".join(source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
    raise LookupError(f"no class, function or constant {name!r}")
