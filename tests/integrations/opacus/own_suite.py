"""Runs the tests that Opacus ships, with ``opacus`` meaning ``lehr.integrations.opacus``.

The test files are read from the installed distribution. ``import opacus`` inside them gives Lehr's integration; a name
that it lacks raises when it is used, so that only the tests that use it fail. Three things are adapted, because the
tests cannot say them: ``accept_unproven=True``, gradients of single records (which Lehr does not store in
``p.grad_sample``), and torchvision's random images and networks.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import unittest
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import distribution
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import Phase, settings
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset

from lehr.integrations.opacus import DPOptimizer, GradSampleModule
from lehr.integrations.opacus.privacy_engine import Options
from lehr.privacy.rng import KEY_BYTES, RunKey

FOLDER = Path(str(distribution("opacus").locate_file("opacus")))
GRADIENTS = "opacus.utils.per_sample_gradients_utils"
# Opacus's tools for its tests: they contain nothing that is tested.
TOOLS = ("opacus.tests", "opacus.utils.module_utils", "opacus.utils.packed_sequences", GRADIENTS)
# Gradients are compared up to 1e-7, which float32 does not have where attention adds up in another order.
IN_FLOAT64 = "PrivacyEngineText"


class _Missing(type):
    """A name that Lehr's integration does not have."""

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        raise NotImplementedError(f"{cls.__name__}.{name}")


def _or_missing(module: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return getattr(importlib.import_module("lehr.integrations." + module), name)
    except (ImportError, AttributeError):
        return _Missing(f"{module}.{name}", (), {})


class _Alias(MetaPathFinder, Loader):
    """Finds ``opacus`` and ``torchvision``."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not _is_aliased(name):
            return None
        if not name.startswith(TOOLS):
            return ModuleSpec(name, self, is_package=True)
        file = FOLDER.joinpath(*name.split(".")[1:])
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        folder = [str(file.parent)] if file.name == "__init__.py" else None
        return spec_from_file_location(name, file, submodule_search_locations=folder)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name.startswith("torchvision"):
            vars(module).update(_TORCHVISION.get(name, {}))
        else:
            vars(module)["__getattr__"] = lambda attribute: _or_missing(name, attribute)


def _is_aliased(name: str) -> bool:
    return name.partition(".")[0] in ("opacus", "torchvision")


def _gradients_of_records(
    x: Any, module: nn.Module, batch_first: bool = True, loss_reduction: str = "mean", grad_sample_mode: str = "hooks"
) -> dict[str, Tensor]:
    """What Opacus's tests expect in ``p.grad_sample``."""
    tools: Any = sys.modules[GRADIENTS]
    if isinstance(x, Tensor) and not batch_first and not len(x):
        x = x.transpose(0, 1)  # one test empties the wrong axis
    model = GradSampleModule(tools.clone_module(module), batch_first=batch_first, loss_reduction=loss_reduction)
    tools.ModelWithLoss(model, loss_reduction)(x).backward()
    gradients = model.hooks.gradients()
    one_each = torch.eye(len(gradients.norms()))
    if isinstance(x, PackedSequence) and x.sorted_indices is not None:
        one_each = one_each[x.sorted_indices]  # Opacus has the records in the order of their lengths
    sums = [gradients.weighted_sum(weights) for weights in one_each]
    names = zip(model._module.named_parameters(), model.hooks.model.named_parameters(), strict=True)
    return {
        own: torch.stack([found[name] for found in sums]).to(value.dtype) if sums else value.new_zeros(0, *value.shape)
        for (own, value), (name, _) in names
        if value.requires_grad
    }


class _FakeData(Dataset[Any]):
    """Random images, as torchvision's class of this name has them."""

    def __init__(self, size: int, image_size: tuple[int, ...], num_classes: int, transform: object = None) -> None:
        self._shape, self._classes, self._size = image_size, num_classes, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        label = torch.randint(self._classes, (), generator=generator)
        return torch.randn(self._shape, generator=generator), int(label)


def _network(weights: None = None) -> nn.Module:
    """A convolution, a BatchNorm and a classifier: what the tests need of torchvision's networks."""
    features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(OrderedDict(features=features, classifier=nn.Linear(16, 10)))


_TORCHVISION: dict[str, dict[str, Any]] = {
    "torchvision.transforms": {name: lambda *_, **__: None for name in ("Compose", "ToTensor", "Normalize")},
    "torchvision.datasets": {"FakeData": _FakeData},
    "torchvision.models": dict.fromkeys(("mobilenet_v3_small", "resnet18", "densenet121"), _network),
}


@contextmanager
def alias(*, max_examples: int) -> Iterator[None]:
    """Inside the block ``opacus`` is Lehr's integration, and every property is tried on so many examples.

    Keys are counted up, so that a test with a tolerance always has the same outcome.
    """
    number = itertools.count()

    def repeatable() -> RunKey:
        return RunKey(next(number).to_bytes(KEY_BYTES))

    before, finder = settings.default, _Alias()
    options: Any = {"derandomize": True, "database": None, "phases": [Phase.generate]}
    settings.register_profile("opacus", max_examples=max_examples, **options)
    settings.load_profile("opacus")
    # Some of the tests replace these two and do not restore them.
    kept = {name: getattr(torch.distributed, name) for name in ("get_rank", "get_world_size")}
    aliased = {name: sys.modules.pop(name) for name in list(filter(_is_aliased, sys.modules))}
    try:
        with (
            patch.object(sys, "meta_path", [finder, *sys.meta_path]),
            patch.object(RunKey, "fresh", repeatable),
            patch.multiple(torch.distributed, **kept),
            patch.dict(Options.__init__.__kwdefaults__, accept_unproven=True),
            patch.dict(DPOptimizer.__init__.__kwdefaults__, accept_unproven=True),
        ):
            tools: Any = importlib.import_module(GRADIENTS)
            tools.compute_opacus_grad_sample = _gradients_of_records
            yield
    finally:
        for name in list(filter(_is_aliased, sys.modules)):
            del sys.modules[name]
        sys.modules.update(aliased)
        settings.register_profile("lehr", before)
        settings.load_profile("lehr")


def files() -> list[str]:
    """The modules of Opacus's tests."""
    found = FOLDER.joinpath("tests").rglob("*_test.py")
    return sorted(".".join(("opacus", *path.relative_to(FOLDER).with_suffix("").parts)) for path in found)


def outcomes(
    module: str, *, skips: Callable[[str], bool] = lambda test: False, data_size: int | None = None
) -> dict[str, str]:
    """The tests of a module that are not skipped, each with the empty string if it passed, or else with its error.

    ``data_size`` is the number of records for tests that do not measure noise.
    """
    suites: Any = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    found = {}
    for test in itertools.chain(*suites):
        if type(test).__module__ == module and not skips(test.id()):  # not a base class that the module imports
            found[test.id()] = _outcome(test, None if "noise" in test.id() else data_size)
    return found


def _outcome(test: unittest.TestCase, data_size: int | None) -> str:
    result, set_up = unittest.TestResult(), test.setUp

    def set_up_small() -> None:
        set_up()
        vars(test)["DATA_SIZE"] = data_size

    if data_size is not None:
        vars(test)["setUp"] = set_up_small
    dtype, deterministic = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            torch.set_default_dtype(torch.float64 if type(test).__name__.startswith(IN_FLOAT64) else dtype)
            test.run(result)
    finally:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic)
    if result.skipped:
        return f"skipped: {result.skipped[0][1]}"
    wrong = [*result.errors, *result.failures]
    return wrong[0][1] if wrong else ""
