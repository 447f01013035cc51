"""Coming from Opacus: import paths, notes, and a page that lists every public name of Opacus."""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import lehr.integrations.opacus
from lehr.errors import InvalidValue
from lehr.integrations.opacus.migration import (
    DifferentiallyPrivateDistributedDataParallel,
    DPLightningDataModule,
    Notes,
    UnprovenWarning,
    average_gradients,
)


def test_notes_are_kept_and_logged_once_and_warnings_point_at_the_users_line(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    with caplog.at_level(logging.INFO, logger="lehr.integrations.opacus"):
        notes.add("one engine")
        notes.add("one engine")
        with pytest.warns(UserWarning, match="padded"):
            notes.warn("padded")
    assert list(notes) == caplog.messages == ["one engine", "padded"]
    assert notes.unproven == []
    with pytest.warns(UnprovenWarning, match="shuffled") as caught:
        notes.mark_unproven("shuffled")
    assert caught[0].filename == __file__
    assert notes.unproven == ["shuffled"]


@pytest.mark.parametrize(
    "unsupported, instead",
    [
        (DifferentiallyPrivateDistributedDataParallel, "torchrun"),
        (average_gradients, "torchrun"),
        (DPLightningDataModule, "lehr.integrations.lightning"),
    ],
)
def test_unsupported_names_say_what_to_use(unsupported: Any, instead: str) -> None:
    with pytest.raises(InvalidValue, match=instead):
        unsupported(nn.Linear(1, 1))


PAGE = Path(__file__).parents[3] / "docs" / "opacus.md"
ROW = re.compile(r"^\| (?P<names>.+?) \| (?P<how>same|better|missing|refused) \|(?P<what>.*)\|$", flags=re.MULTILINE)


def rows() -> dict[str, str]:
    """Every name in the first column of a table, and how it stands here."""
    text = PAGE.read_text(encoding="utf-8")
    return {name: row["how"] for row in ROW.finditer(text) for name in re.findall(r"`([^`]+)`", row["names"])}


def public_names(package: str) -> Iterator[str]:
    """What a package offers, with everything below it: what ``__all__`` has, or else what is defined there."""
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
        # The tests are not offered, and the module for Lightning needs that library.
        if inner.name not in ("tests", "lightning"):
            yield from public_names(f"{package}.{inner.name}")


def test_every_public_name_of_opacus_stands_in_the_table() -> None:
    pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = set(public_names("opacus"))
    assert len(found) > 100
    assert sorted(found - set(rows())) == []


PATHS = """
    accountants.rdp.RDPAccountant accountants.registry.create_accountant accountants.utils.get_noise_multiplier
    data_loader.DPDataLoader distributed.DifferentiallyPrivateDistributedDataParallel
    grad_sample.grad_sample_module.GradSampleModule grad_sample.utils.register_grad_sampler layers.dp_rnn.DPLSTM
    lightning.DPLightningDataModule optimizers.optimizer.DPOptimizer privacy_engine.PrivacyEngine
    schedulers.noise_scheduler.ExponentialNoise utils.batch_memory_manager.BatchMemoryManager
    utils.fast_gradient_clipping_utils.DPLossFastGradientClipping utils.uniform_sampler.UniformWithReplacementSampler
    validators.errors.UnsupportedModuleError validators.module_validator.ModuleValidator
"""


@pytest.mark.parametrize("path", PATHS.split())
def test_opacuss_import_paths_work(path: str) -> None:
    module, _, name = path.rpartition(".")
    ours = getattr(importlib.import_module(f"lehr.integrations.opacus.{module}"), name)
    assert ours.__module__.startswith("lehr.integrations.opacus")


def test_whatever_is_called_missing_is_missing_and_whatever_is_not_is_there() -> None:
    offered = set(public_names("lehr.integrations.opacus")) | {"utils"}
    classes = {name for name in offered if name[0].isupper()}
    missing = {name for name, how in rows().items() if how == "missing"}
    assert sorted(classes & missing) == []
    assert sorted(set(lehr.integrations.opacus.__all__) - set(rows())) == ["UnprovenWarning"]
