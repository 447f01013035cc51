"""Every source file has a test file of the same path, so that nobody has to search for one."""

from __future__ import annotations

from pathlib import Path


def sources_without_test(sources: Path, tests: Path) -> list[str]:
    """The Python files below ``sources`` that have no ``test_<file>.py`` at the same place below ``tests``."""
    files = (path.relative_to(sources) for path in sorted(sources.rglob("*.py")) if path.name != "__init__.py")
    return [str(file) for file in files if not (tests / file.parent / f"test_{file.name}").is_file()]
