"""A study: storage, samplers, the queue of trials, runs of trials, whole searches, and the winner."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import Trial, TrialState

from lehr.config import RunConfig
from lehr.errors import InvalidValue, MissingExtra, StoreError
from lehr.reports.progress import SearchCallback, TrialRow
from lehr.rounding import at_most
from lehr.run.shape import Callback, Evaluation, Progress, RunFiles
from lehr.search.request import Search
from lehr.search.space import Space, extremes
from lehr.search.study import (
    SAMPLERS,
    SECONDS_BETWEEN_SIGHTS,
    SECONDS_UNSEEN,
    Study,
    TrialOutcome,
    TrialReporter,
    finish,
    has_begun,
    open_storage,
    run_trial,
    sampler_for,
    winning_configuration,
)
from lehr.training.prepare import method_and_plan
from tests.search.searches import MODEL, PRIVACY, as_toml, free_search, write_records


def study_in(folder: Path, *, search: Search | None = None, name: str = "s", **words: Any) -> Study:
    own = {key: words.pop(key) for key in ("url", "clock") if key in words}
    search = search or free_search(folder, **words)
    return Study(search=search, directory=folder / "study", name=name, **own)


@pytest.mark.parametrize("name", ["plain", "50% off? a#b"])
def test_a_study_is_a_file_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    open_storage(tmp_path / name)
    assert (tmp_path / name / "study.db").exists()


@pytest.mark.parametrize("url", ["me:secret@host", "nosuchdatabase://me:secret@host/studies"])
def test_a_password_is_never_shown(tmp_path: Path, url: str) -> None:
    with pytest.raises((InvalidValue, StoreError)) as error:
        open_storage(tmp_path, url)
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("something else " * 100)
    with pytest.raises(StoreError, match=r"study\.db"):
        open_storage(tmp_path)
    assert (tmp_path / "study.db").read_text() == "something else " * 100


def drawn(name: str, *, seed: int, first: int, count: int) -> list[tuple[Any, ...]]:
    """The draws of a study that was begun with trial ``first``."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    found = []
    for number in range(first, first + count):
        study.sampler = sampler_for(name, seed=seed, number=number)
        trial = study.ask()
        values = trial.suggest_float("rate", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        study.tell(trial, values[0])
        found.append(values)
    return found


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "gp"])  # which takes seconds
def test_no_two_trials_draw_the_same_even_after_a_new_start(name: str) -> None:
    assert len({rate for rate, _ in drawn(name, seed=1, first=0, count=6)}) == 6


def test_a_trial_draws_the_same_whenever_it_is_begun() -> None:
    assert drawn("random", seed=1, first=0, count=4)[2:] == drawn("random", seed=1, first=2, count=2)
    assert drawn("random", seed=1, first=0, count=2) != drawn("random", seed=2, first=0, count=2)


@pytest.mark.parametrize("words", [{"sampler": "cmaes"}, {"pruner": "patient"}])
def test_unknown_samplers_and_pruners_are_refused(tmp_path: Path, words: dict[str, Any]) -> None:
    assert isinstance(sampler_for("gp", seed=0, number=0), optuna.samplers.GPSampler)
    with pytest.raises(InvalidValue) as error:
        study_in(tmp_path, **words)
    assert [error.value.name] == [*words]


def test_private_records_are_searched_on_only_for_a_price(tmp_path: Path) -> None:
    search = free_search(tmp_path)
    private = replace(search, configuration=search.configuration.with_values(data={"declared": "private"}))
    with pytest.raises(InvalidValue, match="declared"):
        study_in(tmp_path, search=private)
    for declared in ("public", "synthetic"):
        Study(search=replace(private, data={"name": "digits", "declared": declared}), directory=tmp_path, name="s")


# The queue.


class Clock:
    now = 1e9

    def __call__(self) -> float:
        return self.now


Machine = Callable[..., Study]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def machine(tmp_path: Path, clock: Clock) -> Machine:
    """Folders that share a database."""

    def study(name: str = "here", *, limit: int = 3, **words: Any) -> Study:
        (tmp_path / name).mkdir(exist_ok=True)
        search = replace(free_search(tmp_path, **words), trials=limit)
        return study_in(tmp_path / name, search=search, url=f"sqlite:///{tmp_path}/shared.db", clock=clock)

    return study


def claimed(study: Study) -> tuple[Trial, int]:
    found = study.claim()
    assert found is not None
    return found


def states(study: Study) -> list[TrialState]:
    return [trial.state for trial in study.study.get_trials()]


def test_each_trial_is_given_to_one_process_and_never_more_than_were_asked_for(machine: Machine) -> None:
    first, second = machine(), machine()
    taken = [claimed(study) for study in (first, second, first)]
    assert [trial.number for trial, _ in taken] == [0, 1, 2]
    assert second.claim() is None
    first.study.tell(0, 1.0)
    assert second.claim() is None
    assert claimed(machine(limit=4))[0].number == 3


def test_a_trial_whose_process_died_is_resumed_before_another_one(machine: Machine) -> None:
    study = machine()
    claimed(study)
    second, lock = claimed(study)
    os.close(lock)  # what the system does with the locks of the dead
    assert claimed(study)[0].number == second.number
    assert claimed(study)[0].number == 2


def test_a_silent_trial_is_started_again_elsewhere_with_its_settings(machine: Machine, clock: Clock) -> None:
    there, _ = claimed(machine("there", limit=1))
    rate = there.suggest_float("rate", 0, 1)
    here = machine("here", limit=1)
    clock.now += SECONDS_UNSEEN / 2
    assert here.claim() is None
    clock.now += SECONDS_UNSEEN / 2
    again, _ = claimed(here)
    assert again.number == 1
    assert states(here) == [TrialState.FAIL, TrialState.RUNNING]
    assert again.suggest_float("rate", 0, 1) == rate
    assert machine("third", limit=1).claim() is None


def test_a_trial_that_is_alive_says_so_now_and_then(machine: Machine, clock: Clock, tmp_path: Path) -> None:
    there, here = machine("there", limit=1), machine("here", limit=1)
    trial, _ = claimed(there)
    reporter = TrialReporter(trial, tmp_path, score="loss", clock=clock)
    step = Progress(step=1, accepted=1, epsilon_spent=0.0)
    first = clock.now
    for seconds in (0, 1, SECONDS_BETWEEN_SIGHTS - 2):
        clock.now += seconds
        reporter.stepped(step)
        assert there.study.get_trials()[0].user_attrs["seen_at"] == first
    for _ in range(3):
        clock.now += SECONDS_UNSEEN / 2
        reporter.stepped(step)
        assert here.claim() is None


def test_trials_that_two_machines_queue_too_many_are_never_begun(machine: Machine) -> None:
    here, there = machine("here", limit=1), machine("there", limit=1)
    for study in (here, there):
        study.study.enqueue_trial({})
    assert claimed(there)[0].number == 0
    assert here.claim() is None
    assert [row.number for row in here.rows()] == [0]


def test_each_combination_of_a_grid_is_tried_once_and_failed_ones_again(machine: Machine) -> None:
    study = machine(limit=3, sampler="grid", space={"momentum": [0.1, 0.2]})
    first, _ = claimed(study)
    claimed(study)
    assert study.claim() is None
    study.study.tell(first.number, state=TrialState.FAIL)
    again, _ = claimed(study)
    assert (again.number, again.suggest_categorical("momentum", [0.1, 0.2])) == (2, 0.1)


# One trial.


@pytest.fixture
def configuration(tmp_path: Path) -> RunConfig:
    return RunConfig.of(data=write_records(tmp_path), model=MODEL, privacy=PRIVACY, training={"evaluate_every": 1})


class StopsAtTwo(Callback):
    """What a process does that is killed after a score."""

    def evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.step == 2:
            raise KeyboardInterrupt


def test_an_interrupted_trial_is_resumed_and_scored_by_its_last_evaluation(
    configuration: RunConfig, tmp_path: Path
) -> None:
    seen: list[Evaluation] = []

    class Seeing(Callback):
        def evaluated(self, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)  # a process died while it made the folder
    with pytest.raises(KeyboardInterrupt):
        run_trial(configuration, folder, score="loss", callbacks=[StopsAtTwo()])
    assert has_begun(folder)
    with pytest.raises(InvalidValue, match="learning_rate was"):  # an error, and no score
        run_trial(configuration.with_values(method={"learning_rate": 0.1}), folder, score="loss")
    key = RunFiles(folder).key.read_bytes()
    first = run_trial(configuration, folder, score="loss", callbacks=[Seeing()])
    assert first == TrialOutcome(score=seen[-1].loss)
    assert seen[-1].step == 4
    model = RunFiles(folder).model.read_bytes()
    assert run_trial(configuration, folder, score="loss") == first  # it is over, and not run again
    assert (RunFiles(folder).key.read_bytes(), RunFiles(folder).model.read_bytes()) == (key, model)


@pytest.mark.parametrize(
    "changed, score, worst",
    [
        ({"method": {"learning_rate": 1e38, "clip_norm": 1e6}}, "loss", math.inf),  # it diverges
        ({"model": {"image_side": 8}}, "accuracy", 0.0),  # no run can be built
    ],
)
def test_a_run_that_fails_has_the_worst_score_and_a_note(
    configuration: RunConfig, tmp_path: Path, changed: dict[str, Any], score: str, worst: float
) -> None:
    outcome = run_trial(configuration.with_values(**changed), tmp_path / "run", score=score)
    assert outcome.score == worst
    assert outcome.note


def test_missing_files_stop_the_search(configuration: RunConfig, tmp_path: Path) -> None:
    lost = configuration.with_values(data={"npz": str(tmp_path / "nowhere.npz")})
    with pytest.raises(StoreError):
        run_trial(lost, tmp_path / "run", score="accuracy")


class FakeTrial:
    """A trial of Optuna that is pruned at its third evaluation."""

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.attributes: dict[str, Any] = {}

    def set_user_attr(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def report(self, value: float, number: int) -> None:
        self.reported.append(number)

    def should_prune(self) -> bool:
        return 3 in self.reported


def test_evaluations_are_reported_by_their_number_and_a_pruned_run_stops(
    configuration: RunConfig, tmp_path: Path
) -> None:
    trial: Any = FakeTrial()
    reporter = TrialReporter(trial, tmp_path / "run", score="accuracy")
    outcome = run_trial(configuration, tmp_path / "run", score="accuracy", callbacks=[reporter])
    assert outcome.is_pruned
    assert trial.reported == [1, 2, 3]
    assert trial.attributes.keys() == {"begun", "seen_at"}


# Whole searches.


class Interrupting(SearchCallback):
    """Stops the search at a trial, as a person or a machine does."""

    def __init__(self, *, trying: int | None = None, scored: int | None = None) -> None:
        self._trying, self._scored, self._number = trying, scored, -1

    def trying(self, number: int, parameters: Mapping[str, object]) -> None:
        self._number = number
        if number == self._trying:
            raise KeyboardInterrupt

    def evaluated(self, evaluation: Evaluation) -> None:
        if self._number == self._scored:
            raise KeyboardInterrupt


def test_an_interrupted_search_is_resumed_with_the_settings_that_it_had_begun(tmp_path: Path) -> None:
    search = free_search(tmp_path, trials=3)
    with pytest.raises(KeyboardInterrupt):
        study_in(tmp_path, search=search).run([Interrupting(trying=1)])
    begun = study_in(tmp_path, search=search).rows()[1]
    assert begun.state == "running"
    with pytest.raises(KeyboardInterrupt):
        study_in(tmp_path, search=search).run([Interrupting(scored=2)])
    rows = study_in(tmp_path, search=search).run()
    assert [(row.number, row.state) for row in rows] == [(number, "done") for number in range(3)]
    assert rows[1].parameters == begun.parameters
    assert len({str(row.parameters) for row in rows}) == 3
    assert all(row.score is not None and 0 <= row.score <= 1 for row in rows)
    assert all("momentum" in row.parameters or row.parameters["optimizer"] == "adam" for row in rows)
    assert all(RunFiles(tmp_path / "study/trials" / str(row.number)).model.exists() for row in rows)
    assert study_in(tmp_path, search=search).run() == rows
    assert len(study_in(tmp_path, search=replace(search, trials=4)).run()) == 4
    for change in ({"score": "loss"}, {"space": {"momentum": [0.0, 0.1]}}):
        with pytest.raises(InvalidValue, match="resumed"):
            study_in(tmp_path, trials=1, **change).run()
    with pytest.raises(StoreError, match="belongs to the study 's'"):
        study_in(tmp_path, search=search, name="other").run()


def test_settings_that_were_chosen_in_part_are_completed_and_a_dropped_result_is_replaced(tmp_path: Path) -> None:
    class GivingUp(SearchCallback):
        def trying(self, number: int, parameters: Mapping[str, object]) -> None:
            if number == 0:
                study.study.tell(0, state=TrialState.FAIL)  # as another machine does that thinks we are dead

    first = study_in(tmp_path, trials=2)
    trial, lock = claimed(first)
    optimizer = trial.suggest_categorical("optimizer", ("sgd", "adam"))
    os.close(lock)
    study = study_in(tmp_path, trials=2)
    assert [row.number for row in study.run([GivingUp()])] == [1, 2]
    given_up = study.study.trials[0]
    assert given_up.state == TrialState.FAIL
    assert given_up.params["optimizer"] == optimizer
    assert "learning_rate" in given_up.params


def test_a_grid_is_tried_whole_and_a_bad_trial_is_noted(tmp_path: Path) -> None:
    space = {"method.clip_norm": [1e6], "learning_rate": [0.01, 1e38]}
    rows = study_in(tmp_path, space=space, sampler="grid", trials=5).run()
    assert [row.parameters["learning_rate"] for row in rows] == [0.01, 1e38]  # the whole grid, and no more
    assert [row.state for row in rows] == ["done", "failed"]
    assert rows[1].score is None
    assert rows[1].note


def test_a_pruner_gives_up_what_is_worse_than_the_others(tmp_path: Path) -> None:
    rows = study_in(
        tmp_path,
        space={"learning_rate": [1.0, 0.9, 0.8, 0.7, 0.6, 1e-9]},
        sampler="grid",
        pruner="median",
        trials=6,
        score="loss",
        training={"evaluate_every": 1},
        privacy={"noise_multiplier": 0.01, "steps": 2, "expected_batch_size": 20},
    ).run()
    assert [row.state for row in rows] == ["done"] * 5 + ["pruned"]
    assert rows[5].score is None


def test_a_refused_search_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="momentum"):
        study_in(tmp_path, space={"momentum": [0.0, 2.0]}).run()
    assert not (tmp_path / "study").exists()


def test_machines_share_a_study_over_one_database(machine: Machine) -> None:
    here, there = machine("here"), machine("there")
    with pytest.raises(KeyboardInterrupt):
        there.run([Interrupting(scored=1)])
    assert [row.state for row in here.run()] == ["done", "running", "done"]
    assert [row.state for row in there.run()] == ["done"] * 3
    assert sorted(path.name for path in (there.directory / "trials").iterdir()) == ["0", "1"]


def _kill_at(command: list[str], folder: Path, *, trial: int) -> None:
    """Begin, and kill without warning once a trial is worked on."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
    try:
        while not (folder / "study/trials" / str(trial)).exists():
            assert process.poll() is None, "the search was over before it was killed"
            time.sleep(0.01)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.whole
def test_a_search_of_twenty_trials_that_is_killed_and_resumed_loses_no_trial(tmp_path: Path) -> None:
    search = free_search(tmp_path, trials=20)
    (tmp_path / "run.toml").write_text(as_toml(search))
    lehr = [sys.executable, "-c", "from lehr.cli.main import main; main()"]
    command = [*lehr, "search", "run.toml", "--study", "study", "-q"]
    begun: dict[int, TrialRow] = {}
    for trial in (3, 12):
        _kill_at(command, tmp_path, trial=trial)
        rows = study_in(tmp_path, search=search, name="study").rows()
        begun |= {row.number: row for row in rows if row.state == "running"}
    subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    study = study_in(tmp_path, search=search, name="study")
    rows = study.rows()
    assert [(row.number, row.state) for row in rows] == [(number, "done") for number in range(20)]
    assert len(study.study.trials) == 20  # none was given up and begun anew
    assert len({str(sorted(row.parameters.items())) for row in rows}) == 20
    assert set(begun) == {3, 12}
    for number, row in begun.items():
        assert rows[number].parameters.items() >= row.parameters.items()
    folders = sorted((tmp_path / "study/trials").iterdir(), key=lambda path: int(path.name))
    assert [path.name for path in folders] == [str(number) for number in range(20)]
    assert all(RunFiles(path).model.exists() for path in folders)


# The winner.

WINNER_SPACE = {
    "optimizer": ["sgd", "adamw"],
    "learning_rate": [0.25],
    "momentum": [0.9],
    "dampening": [0.9],
    "ema_decay": [0.99],
    "augmentation": ["flip_crop"],
    "views": [2],
    "network": [{"network": "small_cnn", "activation": "tanh"}],
    "batch_factor": [2],
    "method.clip_norm": [0.3],
}
CONFIGURATION = RunConfig.of(
    data={"name": "digits"},
    privacy={"epsilon": 4.0, "expected_batch_size": 64, "steps": 16, "simulated_batch_size": 8, "delta": 1e-4},
)
SEARCH = Search(
    configuration=CONFIGURATION, space=Space.read(WINNER_SPACE), data={"name": "digits", "declared": "public"}
)


@pytest.mark.parametrize("place", [0, -1])
def test_the_winner_is_read_back_as_it_was_and_can_be_planned(tmp_path: Path, place: int) -> None:
    parameters = SEARCH.space.choose(lambda name: extremes(SEARCH.space.distributions[name])[place])
    chosen = winning_configuration(SEARCH, parameters, on="public")
    (tmp_path / "winner.toml").write_text(chosen.to_toml())
    read = RunConfig.read(tmp_path / "winner.toml")
    assert read == chosen
    assert read.data == {"name": "digits"}
    assert read.privacy["settings_chosen_on"] == "public"
    assert "simulated_batch_size" not in read.privacy
    method, plan = method_and_plan(read)
    assert plan.bound().epsilon <= 4.0
    assert plan.simulates is None
    assert (plan.expected_batch_size, plan.steps) == (128, 4)
    assert math.isclose(float(str(method.update.to_json()["learning_rate"])), 0.25 * 4)


def test_statements_of_the_configuration_stay_and_say_how_settings_were_chosen() -> None:
    configuration = CONFIGURATION.with_values(privacy={"stated": {"settings_chosen_on": "fixed", "records": 1464}})
    privacy = winning_configuration(replace(SEARCH, configuration=configuration), {}, on="public").privacy
    assert privacy["stated"] == {"settings_chosen_on": "public", "records": 1464}
    assert "settings_chosen_on" not in privacy


ROWS = [
    TrialRow(number=0, state="done", score=0.4, parameters={"optimizer": "adam", "learning_rate": 0.02}),
    TrialRow(number=1, state="done", score=0.6, parameters={"optimizer": "sgd", "learning_rate": 0.2, "momentum": 0.9}),
    TrialRow(number=2, state="failed", score=None, parameters={"learning_rate": 1.0}, note="diverged"),
]


def test_the_best_trial_is_written_as_a_configuration_and_on_a_page(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study.directory.mkdir()
    finished = finish(study, ROWS)
    assert finished.best == ROWS[1]
    assert finished.winner is not None
    assert RunConfig.read(finished.winner).method == {"clip_norm": 1.0, "learning_rate": 0.2, "momentum": 0.9}
    assert all(words in finished.page.read_text() for words in ("60.00%", "learning_rate = 0.2", "synthetic"))
    without = finish(study, ROWS[2:])
    assert (without.best, without.winner) == (None, None)
    assert "diverged" in without.page.read_text()


@pytest.mark.parametrize("factor", [1, 2])
def test_a_winner_that_costs_another_epsilon_than_the_configuration_says_so(tmp_path: Path, factor: int) -> None:
    study = study_in(tmp_path, space={"batch_factor": [1, 2]})
    study.directory.mkdir()
    winner = finish(study, [TrialRow(number=0, state="done", score=0.4, parameters={"batch_factor": factor})]).winner
    assert winner is not None
    _, plan = method_and_plan(RunConfig.read(winner))
    assert (f"ε = {at_most(plan.bound().epsilon)} at δ = 0.001" in winner.read_text()) == (factor == 2)


def test_without_optuna_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna.distributions", None)
    monkeypatch.delitem(sys.modules, "lehr.search.space")
    with pytest.raises(MissingExtra, match=r"lehr\[search\]"):
        importlib.import_module("lehr.search.space")
