from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.reports.search_rows import Row, SearchCallback
from lehr.run_shape import Evaluation, RunFiles
from lehr.search.asked import Search
from lehr.search.study import Study
from lehr.search.terms import Terms, free_terms
from tests.search.synthetic import a_search, as_toml

LEHR = [sys.executable, "-c", "from lehr.cli.main import main; main()"]


def a_study(search: Search, folder: Path, **words: Any) -> Study:
    return Study(**{"search": search, "terms": free_terms(search), "directory": folder, "name": "s", **words})


class Interrupting(SearchCallback):
    """Stops the search where it is told to, as a person or a machine does."""

    def __init__(self, *, trying: int | None = None, scored: int | None = None) -> None:
        self._trying, self._scored, self._number = trying, scored, -1

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        self._number = number
        if number == self._trying:
            raise KeyboardInterrupt

    def evaluated(self, evaluation: Evaluation) -> None:
        if self._number == self._scored:
            raise KeyboardInterrupt


def test_a_search_tries_as_many_settings_as_it_is_asked_for(tmp_path: Path) -> None:
    rows = a_study(a_search(tmp_path), tmp_path / "study").run()
    assert [(row.number, row.state) for row in rows] == [(0, "done"), (1, "done"), (2, "done")]
    assert all(row.score is not None and 0 <= row.score <= 1 for row in rows)
    assert all("momentum" in row.parameters or row.parameters["optimizer"] == "adam" for row in rows)
    assert all(RunFiles(tmp_path / "study" / "trials" / str(row.number)).model.exists() for row in rows)


def test_a_search_that_was_stopped_goes_on_with_the_settings_that_it_had_begun(tmp_path: Path) -> None:
    search, folder = a_search(tmp_path, trials=4), tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        a_study(search, folder).run([Interrupting(trying=1)])
    begun = a_study(search, folder).rows()[1]
    assert begun.state == "running"
    with pytest.raises(KeyboardInterrupt):
        a_study(search, folder).run([Interrupting(scored=2)])
    rows = a_study(search, folder).run()
    assert [(row.number, row.state) for row in rows] == [(number, "done") for number in range(4)]
    assert rows[1].parameters == begun.parameters
    assert len({str(row.parameters) for row in rows}) == 4
    assert a_study(search, folder).run() == rows
    assert len(a_study(replace(search, trials=5), folder).run()) == 5


def test_settings_that_were_given_in_part_are_completed(tmp_path: Path) -> None:
    search, folder = a_search(tmp_path, trials=1), tmp_path / "study"
    study = a_study(search, folder)
    claim = study._claims().next(limit=1)
    assert claim is not None
    optuna.Trial(study.study, claim.trial_id).suggest_categorical("optimizer", ("sgd", "adam"))
    [before] = study.rows()
    claim.let_go()
    [row] = a_study(search, folder).run()
    assert row.state == "done"
    assert row.parameters["optimizer"] == before.parameters["optimizer"]
    assert "learning_rate" in row.parameters


def test_a_bad_trial_is_noted_and_the_search_goes_on(tmp_path: Path) -> None:
    search = a_search(tmp_path, space={"method.clip_norm": [1e6], "learning_rate": [0.01, 1e38]}, sampler="grid")
    rows = a_study(search, tmp_path / "study").run()
    assert [row.state for row in rows] == ["done", "failed"]
    assert rows[1].score is None
    assert rows[1].note


def test_a_grid_is_tried_whole_and_no_more(tmp_path: Path) -> None:
    search = a_search(tmp_path, space={"momentum": [0.0, 0.5]}, sampler="grid", trials=5)
    rows = a_study(search, tmp_path / "study").run()
    assert [row.parameters for row in rows] == [{"momentum": 0.0}, {"momentum": 0.5}]


def test_a_pruner_gives_up_what_is_worse_than_the_others(tmp_path: Path) -> None:
    search = a_search(
        tmp_path,
        space={"learning_rate": [1.0, 1e-9]},
        pruner="median",
        trials=10,
        score="loss",
        training={"evaluate_every": 1},
        privacy={"noise_multiplier": 0.01, "steps": 3, "expected_batch_size": 24},
    )
    rows = a_study(search, tmp_path / "study").run()
    assert {row.state for row in rows} == {"done", "pruned"}
    assert 1e-9 in {row.parameters["learning_rate"] for row in rows if row.state == "pruned"}
    assert all(row.score is None for row in rows if row.state == "pruned")


@pytest.mark.parametrize("change", [{"score": "loss"}, {"space": {"momentum": [0.0, 0.1]}}])
def test_another_search_does_not_go_on_in_the_same_study(tmp_path: Path, change: dict[str, Any]) -> None:
    a_study(a_search(tmp_path, trials=1), tmp_path / "study").run()
    with pytest.raises(InvalidValue, match="gone on with as it began"):
        a_study(a_search(tmp_path, **{"trials": 1, **change}), tmp_path / "study").run()


def test_a_folder_serves_one_study(tmp_path: Path) -> None:
    a_study(a_search(tmp_path, trials=1), tmp_path / "study").run()
    with pytest.raises(StoreError, match="belongs to the study 's'"):
        a_study(a_search(tmp_path, trials=1), tmp_path / "study", name="other").run()


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="momentum"):
        a_study(a_search(tmp_path, space={"momentum": [0.0, 2.0]}), tmp_path / "study").run()
    assert not (tmp_path / "study").exists()


def test_terms_are_kept_to(tmp_path: Path) -> None:
    search = a_search(tmp_path)
    with pytest.raises(InvalidValue, match="the 5 that were paid for"):
        a_study(search, tmp_path / "study", terms=Terms(words="paid", num_trials=5))
    with pytest.raises(InvalidValue, match="pruner"):
        a_study(replace(search, pruner="median"), tmp_path / "study", terms=Terms(words="paid", may_prune=False))


def test_machines_share_a_study_over_one_database(tmp_path: Path) -> None:
    search = a_search(tmp_path, trials=3)
    shared = f"sqlite:///{tmp_path}/shared.db"
    here = a_study(search, tmp_path / "here", url=shared)
    there = a_study(search, tmp_path / "there", url=shared)
    with pytest.raises(KeyboardInterrupt):
        there.run([Interrupting(scored=1)])
    rows = here.run()
    assert [row.state for row in rows] == ["done", "running", "done"]
    assert [row.state for row in there.run()] == ["done"] * 3
    assert sorted(path.name for path in (tmp_path / "there" / "trials").iterdir()) == ["0", "1"]


def test_a_result_of_a_trial_that_others_gave_up_is_dropped(tmp_path: Path) -> None:
    class GivingUp(SearchCallback):
        def trying(self, number: int, parameters: Mapping[str, object]) -> None:
            if number == 0:
                study.study.tell(0, state=optuna.trial.TrialState.FAIL)

    study = a_study(a_search(tmp_path, trials=2), tmp_path / "study")
    assert [row.number for row in study.run([GivingUp()])] == [1, 2]


def _killed_once(command: list[str], folder: Path, *, at_trial: int) -> None:
    """Begin, and kill without warning once a trial is worked on."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        wanted = folder / "study" / "trials" / str(at_trial)
        while not wanted.exists():
            assert process.poll() is None, "the search was over before it was killed"
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.in_turn(2)
def test_a_search_of_twenty_trials_that_is_killed_and_resumed_loses_no_trial(tmp_path: Path) -> None:
    search = a_search(tmp_path, trials=20)
    (tmp_path / "run.toml").write_text(as_toml(search))
    command = [*LEHR, "search", "run.toml", "--study", "study", "-q"]
    begun: dict[int, Row] = {}
    for at_trial in (3, 12):
        _killed_once(command, tmp_path, at_trial=at_trial)
        rows = a_study(search, tmp_path / "study", name="study").rows()
        begun |= {row.number: row for row in rows if row.state == "running"}
    subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    study = a_study(search, tmp_path / "study", name="study")
    rows = study.rows()
    assert [(row.number, row.state) for row in rows] == [(number, "done") for number in range(20)]
    assert len(study.study.trials) == 20  # none was given up and begun anew
    assert len({str(sorted(row.parameters.items())) for row in rows}) == 20
    assert set(begun) == {3, 12}
    for number, row in begun.items():
        assert rows[number].parameters.items() >= row.parameters.items()
    folders = sorted((tmp_path / "study" / "trials").iterdir(), key=lambda path: int(path.name))
    assert [path.name for path in folders] == [str(number) for number in range(20)]
    assert all(RunFiles(path).model.exists() for path in folders)
