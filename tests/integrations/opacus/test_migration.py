"""Coming from Opacus: import paths, and a page that lists every public name of Opacus."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import lehr.integrations.opacus

PAGE = Path(__file__).parents[3] / "docs" / "opacus.md"
ROW = re.compile(r"^\| (?P<names>.+?) \| (?P<how>same|better|missing) \|(?P<what>.*)\|$", flags=re.MULTILINE)
PATHS = """
    accountants.rdp.RDPAccountant accountants.registry.create_accountant accountants.utils.get_noise_multiplier
    data_loader.DPDataLoader grad_sample.grad_sample_module.GradSampleModule grad_sample.utils.register_grad_sampler
    layers.dp_rnn.DPLSTM optimizers.optimizer.DPOptimizer privacy_engine.PrivacyEngine schedulers.StepNoise
    schedulers.noise_scheduler.ExponentialNoise utils.batch_memory_manager.BatchMemoryManager
    utils.fast_gradient_clipping_utils.DPLossFastGradientClipping utils.uniform_sampler.UniformWithReplacementSampler
    validators.errors.UnsupportedModuleError validators.module_validator.ModuleValidator
"""


def rows() -> dict[str, str]:
    """Every name in the first column of a table, and how it compares."""
    text = PAGE.read_text(encoding="utf-8")
    return {name: row["how"] for row in ROW.finditer(text) for name in re.findall(r"`([^`]+)`", row["names"])}


def public_names(package: str) -> Iterator[str]:
    """The names in ``__all__``, or else those defined there, of a package and everything below it."""
    module = importlib.import_module(package)
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", None) == package
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]
    yield from (name for name in getattr(module, "__all__", own) if not name.startswith("__"))
    for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
        if inner.name not in ("tests", "lightning"):  # the module for Lightning needs that library
            yield from public_names(f"{package}.{inner.name}")


def test_the_page_lists_every_public_name_of_opacus() -> None:
    pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = set(public_names("opacus"))
    assert len(found) > 100
    assert sorted(found - set(rows())) == []


def test_names_called_missing_are_missing_and_all_others_are_on_the_page() -> None:
    classes = {name for name in public_names("lehr.integrations.opacus") if name[0].isupper()}
    missing = {name for name, how in rows().items() if how == "missing"}
    assert sorted(classes & missing) == []
    assert sorted(set(lehr.integrations.opacus.__all__) - set(rows())) == ["UnprovenWarning"]


@pytest.mark.parametrize("path", PATHS.split())
def test_import_paths_of_opacus_work(path: str) -> None:
    module, _, name = path.rpartition(".")
    ours = getattr(importlib.import_module(f"lehr.integrations.opacus.{module}"), name)
    assert ours.__module__.startswith("lehr.integrations.opacus")
