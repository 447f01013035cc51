"""Counting ε must not need torch, and ``import lehr`` must cost nothing. That these tests can fail is shown in
tests/tools/test_fresh_imports.py."""

from __future__ import annotations

from pathlib import Path

from tools.fresh_imports import heavy_imports, modules_of

SOURCES = Path(__file__).parents[2] / "src"
# Modules and packages that may load torch.
TORCH_MODULES: tuple[str, ...] = (
    "lehr.acceptance",
    "lehr.asking",
    "lehr.attempts",
    "lehr.candidates",
    "lehr.checkpoint",
    "lehr.clipping",
    "lehr.compat",
    "lehr.configuration",
    "lehr.data",
    "lehr.distributed",
    "lehr.games",
    "lehr.gradients",
    "lehr.interfaces",
    "lehr.loop",
    "lehr.mechanism",
    "lehr.methods",
    "lehr.networks",
    "lehr.noise",
    "lehr.papers.adadp_times",
    "lehr.papers.beale",
    "lehr.papers.linear_regression",
    "lehr.papers.pretrained",
    "lehr.papers.tan_norms",
    "lehr.papers.tempered_sigmoids_norms",
    "lehr.papers.training",
    "lehr.release",
    "lehr.released_model",
    "lehr.reports.tensorboard",
    "lehr.rng",
    "lehr.run_folder",
    "lehr.sampling",
    "lehr.scoring",
    "lehr.search",
    "lehr.sharded",
    "lehr.trainee",
    "lehr.training",
    "lehr.update",
    "lehr.voting",
)
WORDS = ("lehr", "lehr.errors", "lehr.validate", "lehr.events", "lehr.claims")
HEAVY = ("dp_accounting", "jinja2", "numpy", "plotext", "plotly", "rich", "scipy", "sqlite3", "torch", "typer")


def may_load_torch(module: str) -> bool:
    return any(f"{module}.".startswith(f"{name}.") for name in TORCH_MODULES)


def test_no_module_outside_the_list_loads_torch() -> None:
    light = [module for module in modules_of(SOURCES / "lehr") if not may_load_torch(module)]
    assert set(WORDS) < set(light)
    assert heavy_imports(light, watched=["torch", "torchvision"], search_path=SOURCES) == {}


def test_the_list_of_modules_that_may_load_torch_names_only_modules_that_exist() -> None:
    assert set(TORCH_MODULES) <= set(modules_of(SOURCES / "lehr"))


def test_the_package_and_its_words_load_nothing_heavy() -> None:
    assert heavy_imports(WORDS, watched=HEAVY, search_path=SOURCES) == {}
