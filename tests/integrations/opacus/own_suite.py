"""Runs the tests that Opacus ships, with ``opacus`` meaning ``lehr.integrations.opacus``.

The test files are read from the installed distribution. ``import opacus`` inside them gives Lehr's integration; what it
does not have becomes a name that raises when it is used, so that only the tests that use it fail. Three things are
adapted, because the tests cannot say them: ``accept_unproven=True``, gradients of single records (which Lehr does not
store in ``p.grad_sample``), and torchvision's random images and networks.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
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

from lehr.integrations.opacus import DPOptimizer, GradSampleModule, PrivacyEngine
from lehr.privacy.rng import KEY_BYTES, RunKey

OURS = "lehr.integrations.opacus"
FOLDER = Path(str(distribution("opacus").locate_file("opacus")))
# Opacus's tools for its tests: they hold nothing of what is tested.
TOOLS = ("opacus.tests", "opacus.utils.module_utils", "opacus.utils.packed_sequences")
GRADIENTS = "opacus.utils.per_sample_gradients_utils"
# Gradients are compared up to 1e-7, which float32 does not have where attention adds up in another order.
IN_FLOAT64 = "PrivacyEngineText"
# Draws of one record in expectation: 64 records, not 512, are enough to have empty draws.
WITH_EMPTY_DRAWS = "PrivacyEngineConvNetEmptyBatchTest"


class NotHere(Exception):
    """Lehr's integration does not have this name."""


class _MissingName(type):
    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise NotHere(cls.__name__)

    def __getattr__(cls, name: str) -> Any:
        raise NotHere(f"{cls.__name__}.{name}")


def _or_missing(module: str, name: str) -> Any:
    """What Lehr's integration has at this place, or something that raises when it is used."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        ours = importlib.import_module(OURS + module.removeprefix("opacus"))
        return getattr(ours, name)
    except (ImportError, AttributeError):
        return _MissingName(f"{module}.{name}", (), {})


class _Alias(MetaPathFinder, Loader):
    """Finds ``opacus`` and ``torchvision``."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "torchvision":
            return ModuleSpec(name, self, is_package=True)
        if name.partition(".")[0] != "opacus":
            return None
        if name.startswith(TOOLS) or name == GRADIENTS:
            file = FOLDER.joinpath(*name.split(".")[1:])
            file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
            folder = [str(file.parent)] if file.name == "__init__.py" else None
            return spec_from_file_location(name, file, submodule_search_locations=folder)
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name.startswith("torchvision"):
            vars(module).update(_TORCHVISION.get(name, {}))
            return
        vars(module)["__getattr__"] = lambda attribute: _or_missing(name, attribute)
        if name in ("opacus", "opacus.privacy_engine"):
            vars(module)["PrivacyEngine"] = _accepting()
        if name.startswith("opacus.optimizers"):
            vars(module)["DPOptimizer"] = partial(DPOptimizer, accept_unproven=True)


def _accepting() -> type:
    """The engine, told that Opacus's tests need no proof."""

    class Accepting(PrivacyEngine):
        def make_private(self, **options: Any) -> Any:
            return super().make_private(**{"accept_unproven": True, **options})

        def make_private_with_epsilon(self, **options: Any) -> Any:
            return super().make_private_with_epsilon(**{"accept_unproven": True, **options})

    return Accepting


def _gradients_of_records(
    x: Any, module: nn.Module, batch_first: bool = True, loss_reduction: str = "mean", grad_sample_mode: str = "hooks"
) -> dict[str, Tensor]:
    """What Opacus's tests expect in ``p.grad_sample``."""
    tools: Any = sys.modules[GRADIENTS]
    if isinstance(x, Tensor) and not batch_first and not len(x):
        x = x.transpose(0, 1)  # a batch of nobody, of which one test turns the wrong axis into the records'
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


class _Network(nn.Module):
    """A convolution, a BatchNorm and a classifier: what the tests need of torchvision's networks."""

    def __init__(self, weights: None = None) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.features(x).flatten(1))
        return found


_TORCHVISION: dict[str, dict[str, Any]] = {
    "torchvision.transforms": {name: lambda *_, **__: None for name in ("Compose", "ToTensor", "Normalize")},
    "torchvision.datasets": {"FakeData": _FakeData},
    "torchvision.models": dict.fromkeys(("mobilenet_v3_small", "resnet18", "densenet121"), _Network),
}


@contextmanager
def alias(*, max_examples: int) -> Iterator[None]:
    """Inside the block ``opacus`` is Lehr's integration, and every property is tried on so many examples.

    Keys are counted up, so that a test with a tolerance always has the same outcome.
    """
    ours = {name: module for name, module in sys.modules.items() if _is_aliased(name)}
    for name in ours:
        del sys.modules[name]
    finder = _Alias()
    sys.meta_path.insert(0, finder)
    before = settings.default
    settings.register_profile(
        "opacus", max_examples=max_examples, derandomize=True, database=None, phases=[Phase.generate]
    )
    settings.load_profile("opacus")
    number = itertools.count()

    def repeatable(*, cryptographic_on_gpu: bool = False) -> RunKey:
        return RunKey(next(number).to_bytes(KEY_BYTES), cryptographic_on_gpu=cryptographic_on_gpu)

    try:
        tools: Any = importlib.import_module(GRADIENTS)
        tools.compute_opacus_grad_sample = _gradients_of_records
        kept = {name: getattr(torch.distributed, name) for name in ("get_rank", "get_world_size")}
        # Some of the tests replace these two, and leave it at that.
        with patch.object(RunKey, "fresh", repeatable), patch.multiple(torch.distributed, **kept):
            yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_aliased(name)]:
            del sys.modules[name]
        sys.modules.update(ours)
        settings.register_profile("lehr", before)
        settings.load_profile("lehr")


def _is_aliased(name: str) -> bool:
    return name.partition(".")[0] in ("opacus", "torchvision")


def files() -> list[str]:
    """The modules of Opacus's tests."""
    found = FOLDER.joinpath("tests").rglob("*_test.py")
    return sorted(".".join(("opacus", *path.relative_to(FOLDER).with_suffix("").parts)) for path in found)


def outcomes(module: str, *, skips: Callable[[str], bool] = lambda test: False) -> dict[str, str]:
    """The tests of a module that are not skipped, each with the empty string if it passed, or else with its error."""
    found: dict[str, str] = {}
    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    for test in _flat(suite):
        if type(test).__module__ == module and not skips(test.id()):  # not a base class that the module imports
            found[test.id()] = _outcome(test)
    return found


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _outcome(test: unittest.TestCase) -> str:
    result = unittest.TestResult()
    set_up = test.setUp

    def set_up_small() -> None:
        set_up()
        vars(test)["DATA_SIZE"] = 64

    if type(test).__name__ == WITH_EMPTY_DRAWS:
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
