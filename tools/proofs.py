"""A proof quotes the source that it proves, and the quote must still be the source.

A quote in a ``*.proof.md`` is a fenced block whose first line names what it shows::

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
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_FENCE = re.compile(r"^```python (?P<name>\S+)\n(?P<source>.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Quote:
    """A piece of source as a proof shows it, and the name of the object it was taken from."""

    name: str
    source: str


def quotes(proof: str) -> tuple[Quote, ...]:
    """The quotes of a proof, in order."""
    return tuple(Quote(name=found["name"], source=found["source"]) for found in _FENCE.finditer(proof))


def source_of(name: str) -> str:
    """The source of ``module:Object.attribute`` as it is now, without the indentation that the whole of it has."""
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
    """What is wrong with a proof file: no quote, a name that is gone, source that has moved on."""
    found = quotes(proof.read_text(encoding="utf-8"))
    if not found:
        return [f"{proof}: quotes no source"]
    return [problem for quote in found for problem in _problems_of(quote, proof)]


def mechanisms_without_proof(mechanisms: Iterable[str], *, package: Path) -> list[str]:
    """The mechanisms, as paths below the package, that are gone or have no proof of the same name beside them."""
    return [name for name in mechanisms if not (package / name).is_file() or not _beside(package / name).is_file()]


def _beside(source: Path) -> Path:
    return source.with_suffix(".proof.md")


def _problems_of(quote: Quote, proof: Path) -> list[str]:
    try:
        current = source_of(quote.name)
    except (ImportError, AttributeError, OSError, LookupError) as error:
        return [f"{proof}: {quote.name} cannot be found: {error}"]
    return [] if quote.source == current else [f"{proof}: {quote.name} is not as quoted; it is now\n{current}"]


def _assignment(source: str, name: str) -> str:
    """A constant has no source of its own; it is cut out of its module."""
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return "".join(source.splitlines(keepends=True)[node.lineno - 1 : node.end_lineno])
    raise LookupError(f"no class, function or constant {name!r}")
