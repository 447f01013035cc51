"""What the first process tells the others at the end. Whole runs of several are in tests/run/test_distributed.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import InvalidValue
from lehr.privacy.rng import RunKey
from lehr.run.distributed import Ranks
from lehr.training import fit as fitting
from lehr.training import training_run
from lehr.training.ending import Run
from lehr.training.training_run import TrainingRun, _identity
from tests.several_ranks import records

KEY = RunKey(bytes(32))


def planned(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> TrainingRun:
    """A run as ``fit`` decides it, caught before it is trained."""
    caught: list[TrainingRun] = []

    def keep(run: TrainingRun, where: Path, **_: object) -> Run:
        caught.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "train_run", keep)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 12, "delta": 1e-3, **changed}
    data = given.pop("data", None) or records(0, 60)
    with pytest.raises(KeyboardInterrupt):
        fitting.fit(nn.Linear(4, 3), data, records=60, num_classes=3, compiled=False, quiet=True, **given)
    return caught[0]


def test_ranks_are_alike_where_settings_and_records_are_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one, twin = (_identity(planned(monkeypatch), KEY) for _ in range(2))
    assert one == twin
    other_steps = _identity(planned(monkeypatch, steps=5), KEY)
    assert other_steps["settings"] != one["settings"]
    assert other_steps["records"] == one["records"]
    held = records(0, 60)
    swapped = type(held)(held.inputs[torch.arange(59, -1, -1)], held.targets[torch.arange(59, -1, -1)])
    assert _identity(planned(monkeypatch, data=swapped), KEY)["records"] != one["records"]


def branches(names: str, *, is_training: bool = True) -> nn.Module:
    """Two layers side by side, in this order: one that is made from a set has another in every process."""
    model = nn.Module()
    for name in names:
        model.add_module(name, nn.Linear(4, 3))
    return model.train(is_training)


def test_ranks_whose_layers_stand_in_another_order_or_mode_are_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places of noise follow the order: in two orders, one number would be added to weights of two ranks."""
    run = planned(monkeypatch)
    found = []
    for model in (branches("ab"), branches("ab"), branches("ba"), branches("ab", is_training=False)):
        object.__setattr__(run, "model", model)
        found.append(_identity(run, KEY))
    one, twin, other_order, other_mode = found
    assert one == twin
    assert one["model"] not in (other_order["model"], other_mode["model"])


def test_only_ranks_that_wait_for_one_another_need_batches_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (planned(monkeypatch, physical_batch=size) for size in (4, 8))
    assert _identity(few, KEY) == _identity(many, KEY)
    for run in (few, many):
        object.__setattr__(run, "is_sharded", True)
    assert _identity(few, KEY)["physical_batch"] != _identity(many, KEY)["physical_batch"]


def test_a_trial_of_a_search_is_not_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned(monkeypatch)
    object.__setattr__(run, "ranks", Ranks(number=0, total=2))
    monkeypatch.setattr(training_run, "check_searchable", lambda plan: None)
    trial: Any = SimpleNamespace(refuse_other=lambda event: None)
    with pytest.raises(InvalidValue, match="trial_of"):
        run._refuse_unfit_trial(trial)
