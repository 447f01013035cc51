"""Several fits in a row: each has a folder and, in one budget, a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lehr
from lehr.planning.budget import Budget
from lehr.run.folder import read_config
from tests.training.tiny import PRIVATE, fit_tiny, linear, new_budget

NUMBERS: dict[str, Any] = {"records": 24, "num_classes": 3, "noise_multiplier": 2.0, "steps": 2, "batch_size": 4}


def test_folds_need_neither_folder_nor_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs, targets = PRIVATE
    new_budget(Path("one.budget"))
    runs = [
        lehr.fit(linear(), (inputs[fold], targets[fold]), budget="one.budget", delta=1e-3, silent=True, **NUMBERS)
        for fold in (slice(0, 24), slice(24, 48))
    ]
    assert len({run.directory for run in runs}) == 2
    with Budget.open(Path("one.budget")) as budget:
        names = [each.run for each in budget.status().runs]
    assert names == [read_config(run.directory)["run"] for run in runs]
    assert len({*names}) == 2


def test_a_run_with_a_default_name_is_resumed_by_its_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"budget": new_budget(tmp_path / "one.budget"), "steps": 2}
    first = fit_tiny(tmp_path / "run", **options)
    again = fit_tiny(tmp_path / "run", resume=True, **options)
    assert again.end.step == first.end.step
