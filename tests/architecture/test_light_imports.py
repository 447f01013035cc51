"""Counting ε must not need torch, and ``import lehr`` must cost nothing. That these tests can fail is shown in
tests/tools/test_fresh_imports.py."""

from __future__ import annotations

from pathlib import Path

from tools.fresh_imports import heavy_imports, modules_of

SOURCES = Path(__file__).parents[2] / "src"
# Rooms and modules that never load torch; all others may.
LIGHT = (
    "lehr.accounting",
    "lehr.auditing",
    "lehr.cli",
    "lehr.config",
    "lehr.errors",
    "lehr.files",
    "lehr.planning",
    "lehr.reports",
    "lehr.rounding",
    "lehr.schedules",
    "lehr.validate",
)
WORDS = ("lehr", "lehr.errors", "lehr.validate", "lehr.rounding")
HEAVY = ("dp_accounting", "jinja2", "numpy", "plotext", "plotly", "rich", "scipy", "sqlite3", "torch", "typer")


def is_light(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{name}." for name in LIGHT))


def test_no_light_module_loads_torch() -> None:
    light = [module for module in modules_of(SOURCES / "lehr") if is_light(module)]
    assert set(LIGHT) < set(light)
    assert heavy_imports(light, watched=["torch", "torchvision"], search_path=SOURCES) == {}


def test_the_package_and_its_words_load_nothing_heavy() -> None:
    assert heavy_imports(WORDS, watched=HEAVY, search_path=SOURCES) == {}
