"""Which packages are loaded when modules are imported, in a fresh Python process.

A module that is imported in the running process proves nothing: another one may have loaded the package before it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

_CHILD = """
import importlib, json, sys
modules, watched = json.load(sys.stdin)
found = {}
for module in modules:
    importlib.import_module(module)
    for package in watched:
        if package in sys.modules:
            found.setdefault(package, module)
json.dump(found, sys.stdout)
"""


def modules_of(package: Path) -> tuple[str, ...]:
    """The dotted name of every module in the folder of a package, the package itself first."""
    files = (path.relative_to(package.parent).with_suffix("") for path in package.rglob("*.py"))
    parts = (path.parts[:-1] if path.name == "__init__" else path.parts for path in files if path.name != "__main__")
    return tuple(sorted(".".join(part) for part in parts))


def heavy_imports(modules: Iterable[str], *, watched: Iterable[str], search_path: Path) -> dict[str, str]:
    """Each watched package that the modules load, and the first of them after which it is there."""
    finished = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps([list(modules), list(watched)]),
        env={**os.environ, "PYTHONPATH": str(search_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"the modules cannot be imported:\n{finished.stderr}")
    found: dict[str, str] = json.loads(finished.stdout)
    return found
