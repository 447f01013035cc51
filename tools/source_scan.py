"""What source code must not contain, found by reading its syntax tree, so that a word in a comment does not count."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Modules that are not imported and builtins that are not called, with the reason."""

    reason: str
    modules: frozenset[str] = frozenset()
    builtins: frozenset[str] = frozenset()


NO_TORCHVISION = Rule(reason="readers of data are our own", modules=frozenset({"torchvision"}))
NO_TORCH = Rule(reason="counting ε must not need torch", modules=frozenset({"torch"}))
NO_CODE_FROM_DATA = Rule(
    reason="what is read from a file never becomes code",
    modules=frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}),
    builtins=frozenset({"eval", "exec"}),
)
NO_LOOSE_RANDOMNESS = Rule(
    reason="randomness has one maker, and these two are predictable", modules=frozenset({"random", "numpy.random"})
)


def findings(path: Path, rules: Collection[Rule]) -> list[str]:
    """Every place of a Python file that breaks a rule, as ``file:line: what, why not``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = [*_imported(tree), *_attributes_as_modules(tree)]
    called = list(_called(tree))
    found = {
        *((line, f"uses {name}", rule.reason) for rule in rules for line, name in used if _hits(name, rule.modules)),
        *((line, f"calls {name}", rule.reason) for rule in rules for line, name in called if name in rule.builtins),
    }
    return [f"{path}:{line}: {what}, but {reason}" for line, what, reason in sorted(found)]


def _hits(name: str, modules: Collection[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _last_name(node.func) in _IMPORTERS:
                yield node.lineno, name


_IMPORTERS = {"import_module", "__import__"}


def _attributes_as_modules(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """``np.random`` reaches a module without naming it in an import."""
    renamed = {alias.asname or alias.name: alias.name for alias in _plain_imports(tree)}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in renamed:
                yield node.lineno, f"{renamed[name]}.{attribute}"


def _plain_imports(tree: ast.AST) -> Iterator[ast.alias]:
    return (alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names)


def _called(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield node.lineno, name


def _last_name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""
