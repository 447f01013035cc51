"""What source code must not contain, found in its syntax tree, so that a word in a comment does not count."""

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
NO_CODE_FROM_DATA = Rule(
    reason="what is read from a file never becomes code",
    modules=frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}),
    builtins=frozenset({"eval", "exec"}),
)
NO_LOOSE_RANDOMNESS = Rule(
    reason="randomness has one source, and these two are predictable", modules=frozenset({"random", "numpy.random"})
)


def findings(path: Path, rules: Collection[Rule]) -> list[str]:
    """Every place of a Python file that breaks a rule, as ``file:line: what, why not``."""
    text = path.read_text(encoding="utf-8")
    names = {name for rule in rules for name in rule.modules | rule.builtins}
    if not any(name.rpartition(".")[2] in text for name in names):  # parsing is slow
        return []
    found = set()
    for line, name, is_call in _uses(ast.parse(text)):
        for rule in rules:
            if is_call and name in rule.builtins:
                found.add((line, f"calls {name}", rule.reason))
            if not is_call and any(f"{name}.".startswith(f"{module}.") for module in rule.modules):
                found.add((line, f"uses {name}", rule.reason))
    return [f"{path}:{line}: {what}, but {reason}" for line, what, reason in sorted(found)]


def _uses(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """The line and the name of every module that is used, and, with True, of every function that is called."""
    nodes = [*ast.walk(tree)]
    imported = [alias for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    module_of = {alias.asname or alias.name: alias.name for alias in imported}
    for node in nodes:
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name, False) for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                yield from ((node.lineno, f"{module}.{alias.name}", False) for alias in node.names)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in module_of:  # such as np.random
                yield node.lineno, f"{module_of[name]}.{attribute}", False
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]
            ) if name in ("import_module", "__import__"):
                yield node.lineno, module, False
            case ast.Call(func=ast.Name(id=name)):
                yield node.lineno, name, True
