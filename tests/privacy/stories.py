"""The stories that faults are put into: a run, one in another loop, one that takes no step, and two searches."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from lehr.accounting.events import counted
from lehr.accounting.ledger import Ledger
from lehr.certificates.release import release
from lehr.errors import LehrError
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.search_cost import Composition
from lehr.privacy.rng import RunKey
from lehr.search.paid import PaidStudy
from lehr.training.training_run import TrainingRun, train_run
from tests.integrations.test_external_loop import open_run, take
from tests.privacy.faults import Story
from tests.search.searches import HOW, paid_in, selection_in
from tests.training.tiny import fit_tiny, new_budget

HERE = Path()
STEPS = 3


def told_in(root: Path, names: list[str]) -> dict[str, Story]:
    """These stories, or all, prepared as far as they can be before a fork, each in a folder with a budget."""
    torch.set_num_threads(1)
    RunKey.fresh = classmethod(lambda cls, **named: cls(bytes(range(32)), **named))  # type: ignore[method-assign, assignment]
    makers: dict[str, Callable[[], Story]] = {
        "training": _training,
        "loop": _loop,
        "no step": _no_step,
        "selection": _selection,
        "composition": _composition,
    }
    before, stories = Path.cwd(), {}
    for name, make in makers.items():
        if names and name not in names:
            continue
        (root / name).mkdir()
        os.chdir(root / name)
        new_budget(Path("budget"))
        stories[name] = make()
    os.chdir(before)
    return stories


def _paid(folder: Path) -> tuple[RunStatus, ...]:
    with Budget.open(folder / "budget") as account:
        return account.status().runs


def _steps(charged: Any) -> int:
    return sum(counted(charged).values())


def _nothing_is_lost(folder: Path, released: int) -> None:
    """The ledger and the budget have every step that was released."""
    if not (folder / "run" / "config.json").exists():
        assert not released
        return
    with Ledger.open(folder / "run" / "ledger.db") as ledger:
        assert _steps(ledger.charged()) >= released
        assert not released or _steps(_paid(folder)[0].charged) >= _steps(ledger.charged())


def _all_is_paid(folder: Path, released: int) -> None:
    """The run is settled by what its ledger says, which is no less than was released."""
    [paid] = _paid(folder)
    with Ledger.open(folder / "run" / "ledger.db") as ledger:
        assert ledger.is_finished()
        assert paid.is_settled
        assert counted(paid.charged) == counted(ledger.charged())
        assert _steps(ledger.charged()) >= released > 0
    _no_left_overs(folder)


def _no_left_overs(folder: Path) -> None:
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".part") and path.is_dir()]


def _training() -> Story:
    """A run is trained and released; a run that began is resumed, and one that lost its key was released before."""
    found: list[TrainingRun] = []
    said: dict[str, Any] = {"settings_chosen_on": "fixed", "checkpoint_seconds": 0, "steps": STEPS}
    with patch("lehr.training.fit.train_run", lambda run, where, **_: found.append(run)):
        fit_tiny(Path("run"), budget=Path("budget"), **said)
    [run] = found
    _ = run.recorded, run.engines

    def tell() -> None:
        where = Path("run")
        began = (where / "config.json").exists()
        key = where / "private" / "key"
        if not began or (key.exists() and any(key.read_bytes())):
            train_run(run, where, resume=began, callbacks=())
        release(where, Path("out"), budget=Path("budget"))

    names = ("model.safetensors", "config.json", "certificate.json", "README.md")
    left = (*(f"out/{name}" for name in names), "run/metrics.jsonl", "run/model.safetensors")
    return Story(tell=tell, holds=_nothing_is_lost, ends=_all_is_paid, leaves=left, weight=6)


def _loop() -> Story:
    """A run in a loop that is not Lehr's: some steps, a break, the rest. One that goes on draws, and pays, anew."""

    def tell() -> None:
        budget = Path("budget").absolute()
        if not Path("run/config.json").exists():
            run = open_run(HERE, steps=4, budget=budget)
            take(run, 1)
            run.close()
        with Ledger.open(Path("run/ledger.db")) as ledger:
            began_at = min(1, ledger.count("steps"))  # there is a checkpoint once a step is taken
        run = open_run(HERE, steps=4, resumed_at=began_at, budget=budget)
        take(run, run.end_step - began_at)
        run.finish(run.model.state_dict())
        run.close()

    open_run(Path("warm"), steps=4).close()
    return Story(tell=tell, holds=_nothing_is_lost, ends=_all_is_paid, weight=2)


def _no_step() -> Story:
    """A run that is closed before its first step leaves neither a folder nor a cost."""

    def tell() -> None:
        name, budget = f"run {len(_paid(HERE))}", Path("budget").absolute()
        if Path("run/config.json").exists():
            with suppress(LehrError):  # it was settled
                open_run(HERE, resumed_at=0, budget=budget, name="run 0").close()
        else:
            open_run(HERE, budget=budget, name=name).close()

    def ends(folder: Path, released: int) -> None:
        with Budget.open(folder / "budget") as account:
            assert all(paid.is_settled or (folder / "run").exists() for paid in account.status().runs) or not released
        _no_left_overs(folder)

    open_run(Path("warm")).close()
    return Story(tell=tell, holds=_nothing_is_lost, ends=ends)


def _whole(event_of: Callable[[], dict[str, Any]]) -> Callable[[Path, int], None]:
    """All of a search is charged, once, and for good."""

    def ends(folder: Path, released: int) -> None:
        assert {paid.run: (paid.charged, paid.is_settled) for paid in _paid(folder)} == {
            run: (event, True) for run, event in event_of().items()
        }
        _no_left_overs(folder)

    return ends


def _anything(folder: Path, released: int) -> None:
    assert all(paid.charged == paid.reserved for paid in _paid(folder))


def _selection() -> Story:
    """A search begins: its folder is made, and all of it is reserved. What comes after is training."""
    selection = replace(selection_in(Path.cwd(), budget=Path("budget")), directory=Path("search"))
    replace(selection, directory=Path("warm"), budget=None)._begin()

    def tell() -> None:
        selection._open()

    return Story(tell=tell, holds=_anything, ends=_whole(lambda: {"our search": selection.paid.event}))


def _composition() -> Story:
    paid = paid_in(Path.cwd(), Composition(2))
    study = PaidStudy(paid=paid, directory=Path("study"), name="ours", budget=Path("budget"), options=HOW)
    event, others = paid.price.certified(paid.trial_event)
    replace(study, directory=Path("warm"), budget=None)._begin(Path("warm/price.json"))

    def tell() -> None:
        with patch("lehr.search.study.Study.run", return_value=[]):
            study.run()

    return Story(tell=tell, holds=_anything, ends=_whole(lambda: {"ours": event, "ours, the other trials": others}))
