"""What the first process tells the others at the end. Whole runs of several are in tests/test_distributed.py."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lehr.distributed import Ranks
from lehr.errors import InvalidValue
from lehr.rng import RunKey
from lehr.run_shape import End
from lehr.training import fit as fitting
from lehr.training.ending import Run
from lehr.training.planned import Planned
from lehr.training.ranked import _ended, _identity, _outcome, trained
from tests.several_ranks import records

KEY = RunKey(bytes(32))


def planned(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> Planned:
    """A run as ``fit`` decides it, caught before it is trained."""
    caught: list[Planned] = []

    def keep(run: Planned, where: Path, **_: object) -> Run:
        caught.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "trained", keep)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "steps": 4, "expected_batch_size": 12, "delta": 1e-3, **changed}
    data = given.pop("data", None) or records(0, 60)
    with pytest.raises(KeyboardInterrupt):
        fitting.fit(nn.Linear(4, 3), data, records=60, num_classes=3, compiled=False, quiet=True, **given)
    return caught[0]


def test_what_is_told_at_the_end_makes_the_same_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = planned(monkeypatch, settings_chosen_on="fixed", test=records(1, 30))
    done = trained(run, tmp_path / "run", resume=False, callbacks=())
    again = _ended(run, json.loads(json.dumps(_outcome(done))))
    assert again.certificate is not None
    for name in ("directory", "plan", "end", "evaluations", "certificate", "proven", "published", "promises_nothing"):
        assert getattr(again, name) == getattr(done, name), name


def test_an_infinite_epsilon_is_told_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = planned(monkeypatch)
    done = trained(run, tmp_path / "run", resume=False, callbacks=())
    endless = replace(done, end=End(step=4, accepted=4, epsilon_spent=math.inf, reason="plan completed"))
    assert _ended(run, json.loads(json.dumps(_outcome(endless)))).end == endless.end


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


def test_a_trial_of_a_search_is_not_shared_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = planned(monkeypatch)
    object.__setattr__(run, "trial_of", "a search")
    object.__setattr__(run, "ranks", Ranks(number=0, total=2))
    with pytest.raises(InvalidValue, match="trial_of"):
        trained(run, tmp_path / "run", resume=False, callbacks=())
