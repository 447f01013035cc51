"""A study: storage, samplers, claims of trials, runs of trials, whole searches, and the winner as a configuration."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from lehr.config import RunConfig
from lehr.errors import InvalidValue, MissingExtra, StoreError
from lehr.reports.progress import SearchCallback, TrialRow
from lehr.rounding import at_most
from lehr.run.shape import Callback, Evaluation, RunFiles
from lehr.search.request import PRUNERS, SAMPLERS, Search, free_terms
from lehr.search.space import Parameters, Space
from lehr.search.study import (
    FIXED,
    PRUNER_OF,
    SECONDS_BETWEEN_SIGHTS,
    SECONDS_UNSEEN,
    Study,
    TrialClaim,
    TrialClaims,
    TrialOutcome,
    TrialReporter,
    counts,
    finish,
    has_begun,
    open_storage,
    pruner_by_name,
    run_trial,
    sampler_for,
    url_for,
    winning_configuration,
)
from lehr.training.prepare import method_and_plan
from tests.search.synthetic import MODEL, PRIVACY, a_search, as_toml, written


def test_a_study_is_a_file_in_its_folder_whatever_the_folder_is_called(tmp_path: Path) -> None:
    for name in ("plain", "50% off? a#b"):
        folder = tmp_path / name
        folder.mkdir()
        open_storage(url_for(folder))
        assert (folder / "study.db").exists()


def test_a_password_is_never_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as error:
        url_for(tmp_path, "me:secret@host")
    assert "secret" not in str(error.value)


def test_a_driver_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises((StoreError, InvalidValue), match="nosuchdatabase") as error:
        open_storage(url_for(tmp_path, "nosuchdatabase://me:secret@host/studies"))
    assert "secret" not in str(error.value)


def test_a_file_that_is_no_database_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("something else " * 100)
    with pytest.raises(StoreError, match=r"study\.db"):
        open_storage(url_for(tmp_path))
    assert (tmp_path / "study.db").read_text() == "something else " * 100


SOME = [name for name in SAMPLERS if name != "gp"]  # which takes seconds


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


@pytest.mark.parametrize("name", SOME)
def test_no_two_trials_draw_the_same_even_after_a_new_start(name: str) -> None:
    rates = [rate for rate, _ in drawn(name, seed=1, first=0, count=6)]
    assert len(set(rates)) == 6


def test_a_trial_draws_the_same_whenever_it_is_begun() -> None:
    assert drawn("random", seed=1, first=0, count=4)[2:] == drawn("random", seed=1, first=2, count=2)
    assert drawn("random", seed=1, first=0, count=2) != drawn("random", seed=2, first=0, count=2)


def test_every_name_stands_for_something_and_others_are_refused() -> None:
    for name in SAMPLERS:
        assert isinstance(sampler_for(name, seed=0, number=0), optuna.samplers.BaseSampler)
    assert set(PRUNER_OF) == set(PRUNERS)
    with pytest.raises(InvalidValue, match=r"sampler must be one of .*; given: 'cmaes'"):
        sampler_for("cmaes", seed=0, number=0)
    with pytest.raises(InvalidValue, match="pruner"):
        pruner_by_name("patient")


@dataclass
class Clock:
    now: float = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    """A database, and folders of those who share it."""

    folder: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.storage = open_storage(url_for(self.folder))
        self.study = optuna.create_study(storage=self.storage, study_name="s")
        self.study_id = self.storage.get_study_id_from_name("s")

    def claims(self, name: str = "here", **words: Any) -> TrialClaims:
        return TrialClaims(
            storage=self.storage,
            study_id=self.study_id,
            directory=self.folder / name,
            folder=name,
            clock=self.clock,
            **words,
        )

    def trials(self) -> list[FrozenTrial]:
        return self.study.get_trials()

    def done(self, claim: TrialClaim) -> None:
        self.storage.set_trial_state_values(claim.trial_id, TrialState.COMPLETE, [1.0])
        claim.release()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "database")


def claimed(claims: TrialClaims, *, limit: int = 3) -> TrialClaim:
    found = claims.next(limit=limit)
    assert found is not None
    return found


def test_each_trial_is_given_to_one_process_and_never_more_than_were_asked_for(machine: Machine) -> None:
    first, second = machine.claims(), machine.claims()
    given = [claimed(claims) for claims in (first, second, first)]
    assert [claim.number for claim in given] == [0, 1, 2]
    assert second.next(limit=3) is None
    machine.done(given[0])
    assert second.next(limit=3) is None
    assert claimed(second, limit=4).number == 3


def test_a_trial_whose_process_died_is_found_again_before_a_new_one_is_create(machine: Machine) -> None:
    claims = machine.claims()
    first, second = claimed(claims), claimed(claims)
    os.close(second.held)  # what the system does with the locks of the dead
    again = claimed(claims)
    assert (again.number, again.trial_id) == (second.number, second.trial_id)
    assert len(machine.trials()) == 2
    machine.done(first)


def test_a_trial_that_was_not_seen_for_long_is_begun_anew_elsewhere_with_its_settings(machine: Machine) -> None:
    there = claimed(machine.claims("there"))
    optuna.Trial(machine.study, there.trial_id).suggest_float("rate", 0, 1)
    [rate] = [trial.params["rate"] for trial in machine.trials()]
    machine.clock.now += SECONDS_UNSEEN
    anew = claimed(machine.claims("here"), limit=1)
    assert anew.number == 1
    before, now = machine.trials()
    assert before.state == TrialState.FAIL
    assert now.system_attrs[FIXED] == {"rate": rate}
    assert optuna.Trial(machine.study, anew.trial_id).suggest_float("rate", 0, 1) == rate
    assert machine.claims("third").next(limit=1) is None


def test_a_trial_that_says_it_is_alive_is_not_taken(machine: Machine) -> None:
    there = claimed(machine.claims("there"))
    for _ in range(4):
        machine.clock.now += SECONDS_UNSEEN / 2
        there.seen()
        assert machine.claims("here").next(limit=1) is None


def test_a_sign_of_life_is_written_now_and_then_only(machine: Machine) -> None:
    claim = claimed(machine.claims())
    first = machine.clock.now
    for seconds in (1, 1, SECONDS_BETWEEN_SIGHTS):
        before = machine.trials()[0].user_attrs["seen_at"]
        assert before == first
        machine.clock.now += seconds
        claim.seen()
    assert machine.trials()[0].user_attrs["seen_at"] == machine.clock.now


def test_one_that_two_machines_create_too_many_is_failed_by_the_later(machine: Machine) -> None:
    class Slow(TrialClaims):
        """Another machine, which makes a trial between our look at the study and ours."""

        def _create(self, fixed: Any) -> TrialClaim:
            TrialClaims._create(machine.claims("faster"), fixed)
            return super()._create(fixed)

    slow = Slow(storage=machine.storage, study_id=machine.study_id, directory=machine.folder / "slow", folder="slow")
    assert slow.next(limit=1) is None
    assert [counts(trial) for trial in machine.trials()] == [True, False]


def test_an_abandoned_trial_that_is_one_too_many_is_failed(machine: Machine) -> None:
    claims = machine.claims()
    kept, surplus = claimed(claims), claimed(claims)
    os.close(surplus.held)
    assert claims.next(limit=1) is None
    assert [counts(trial) for trial in machine.trials()] == [True, False]
    machine.done(kept)


def test_of_a_list_each_is_tried_once_and_those_that_failed_again(machine: Machine) -> None:
    listed = [{"x": 1}, {"x": 2}]
    claims = machine.claims(combinations=listed)
    first, second = claimed(claims), claimed(claims)
    assert [trial.system_attrs[FIXED] for trial in machine.trials()] == listed
    assert claims.next(limit=3) is None
    machine.storage.set_trial_state_values(first.trial_id, TrialState.FAIL)
    third = claimed(claims)
    assert machine.trials()[third.number].system_attrs[FIXED] == {"x": 1}
    machine.done(second)


@pytest.fixture
def configuration(tmp_path: Path) -> RunConfig:
    return RunConfig.of(data=written(tmp_path), model=MODEL, privacy=PRIVACY, training={"evaluate_every": 1})


class Stopping(Callback):
    """What a process does that is killed after a score."""

    def evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.step == 2:
            raise KeyboardInterrupt


def test_a_trial_has_the_score_of_its_last_evaluation(configuration: RunConfig, tmp_path: Path) -> None:
    seen: list[Evaluation] = []

    class Seeing(Callback):
        def evaluated(self, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    outcome = run_trial(configuration, tmp_path / "run", score="loss", callbacks=[Seeing()])
    assert outcome == TrialOutcome(score=seen[-1].loss)
    assert seen[-1].step == 4


def test_a_run_that_was_stopped_goes_on_and_one_that_is_over_is_not_run_again(
    configuration: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_trial(configuration, tmp_path / "run", score="accuracy", callbacks=[Stopping()])
    assert has_begun(tmp_path / "run")
    key = RunFiles(tmp_path / "run").key.read_bytes()
    first = run_trial(configuration, tmp_path / "run", score="accuracy")
    model = RunFiles(tmp_path / "run").model.read_bytes()
    assert run_trial(configuration, tmp_path / "run", score="accuracy") == first
    assert RunFiles(tmp_path / "run").key.read_bytes() == key
    assert RunFiles(tmp_path / "run").model.read_bytes() == model


def test_a_folder_in_which_no_run_began_is_create_anew(configuration: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert run_trial(configuration, tmp_path / "run", score="accuracy").note == ""


def test_a_run_that_diverges_has_the_worst_score_and_a_note(configuration: RunConfig, tmp_path: Path) -> None:
    wild = configuration.with_values(method={"learning_rate": 1e38, "clip_norm": 1e6})
    outcome = run_trial(wild, tmp_path / "run", score="loss")
    assert outcome.score == math.inf
    assert "finite" in outcome.note or "loss" in outcome.note


def test_settings_that_no_run_can_be_create_of_have_the_worst_score_and_a_note(
    configuration: RunConfig, tmp_path: Path
) -> None:
    wrong = configuration.with_values(model={"image_side": 8})
    outcome = run_trial(wrong, tmp_path / "run", score="accuracy")
    assert outcome.score == 0
    assert outcome.note


def test_a_run_that_began_otherwise_is_an_error_and_no_score(configuration: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_trial(configuration, tmp_path / "run", score="accuracy", callbacks=[Stopping()])
    with pytest.raises(InvalidValue, match="resumed as it began"):
        run_trial(configuration.with_values(method={"learning_rate": 0.1}), tmp_path / "run", score="accuracy")


def test_what_is_wrong_with_the_files_stops_the_search(configuration: RunConfig, tmp_path: Path) -> None:
    lost = configuration.with_values(data={"npz": str(tmp_path / "nowhere.npz")})
    with pytest.raises(StoreError):
        run_trial(lost, tmp_path / "run", score="accuracy")


class FakeTrial:
    """A trial of Optuna that is pruned at its third evaluation."""

    trial_id = 0
    intermediate_values: Mapping[int, float] = {2: 0.5}  # reported before a crash

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.attributes: dict[str, Any] = {}
        self.signs_of_life = 0
        self.storage = self

    def get_trial(self, trial_id: int) -> FakeTrial:
        return self

    def set_user_attr(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def seen(self) -> None:
        self.signs_of_life += 1

    def report(self, value: float, number: int) -> None:
        self.reported.append(number)

    def should_prune(self) -> bool:
        return 3 in self.reported


def test_evaluations_are_reported_once_by_their_number_and_a_pruned_run_stops(
    configuration: RunConfig, tmp_path: Path
) -> None:
    trial: Any = FakeTrial()
    reporter = TrialReporter(trial, trial, tmp_path / "run", score="accuracy")
    outcome = run_trial(configuration, tmp_path / "run", score="accuracy", callbacks=[reporter])
    assert outcome.is_pruned
    assert trial.reported == [1, 3]
    assert trial.attributes == {"begun": True}
    assert trial.signs_of_life > 3


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


def test_a_search_that_was_stopped_goes_on_with_the_settings_that_it_had_begun(tmp_path: Path) -> None:
    search, folder = a_search(tmp_path, trials=3), tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        a_study(search, folder).run([Interrupting(trying=1)])
    begun = a_study(search, folder).rows()[1]
    assert begun.state == "running"
    with pytest.raises(KeyboardInterrupt):
        a_study(search, folder).run([Interrupting(scored=2)])
    rows = a_study(search, folder).run()
    assert [(row.number, row.state) for row in rows] == [(number, "done") for number in range(3)]
    assert rows[1].parameters == begun.parameters
    assert len({str(row.parameters) for row in rows}) == 3
    assert all(row.score is not None and 0 <= row.score <= 1 for row in rows)
    assert all("momentum" in row.parameters or row.parameters["optimizer"] == "adam" for row in rows)
    assert all(RunFiles(folder / "trials" / str(row.number)).model.exists() for row in rows)
    assert a_study(search, folder).run() == rows
    assert len(a_study(replace(search, trials=4), folder).run()) == 4


def test_settings_that_were_given_in_part_are_completed(tmp_path: Path) -> None:
    search, folder = a_search(tmp_path, trials=1), tmp_path / "study"
    study = a_study(search, folder)
    claim = study.claims().next(limit=1)
    assert claim is not None
    optuna.Trial(study.study, claim.trial_id).suggest_categorical("optimizer", ("sgd", "adam"))
    [before] = study.rows()
    claim.release()
    [row] = a_study(search, folder).run()
    assert row.state == "done"
    assert row.parameters["optimizer"] == before.parameters["optimizer"]
    assert "learning_rate" in row.parameters


def test_a_grid_is_tried_whole_and_a_bad_trial_is_noted(tmp_path: Path) -> None:
    space = {"method.clip_norm": [1e6], "learning_rate": [0.01, 1e38]}
    rows = a_study(a_search(tmp_path, space=space, sampler="grid", trials=5), tmp_path / "study").run()
    assert [row.parameters["learning_rate"] for row in rows] == [0.01, 1e38]  # the whole grid, and no more
    assert [row.state for row in rows] == ["done", "failed"]
    assert rows[1].score is None
    assert rows[1].note


def test_a_pruner_gives_up_what_is_worse_than_the_others(tmp_path: Path) -> None:
    search = a_search(
        tmp_path,
        space={"learning_rate": [1.0, 0.9, 0.8, 0.7, 0.6, 1e-9]},
        sampler="grid",
        pruner="median",
        trials=6,
        score="loss",
        training={"evaluate_every": 1},
        privacy={"noise_multiplier": 0.01, "steps": 3, "expected_batch_size": 24},
    )
    rows = a_study(search, tmp_path / "study").run()
    assert [row.state for row in rows] == ["done"] * 5 + ["pruned"]
    assert rows[5].score is None


def test_a_folder_serves_one_study_of_one_search(tmp_path: Path) -> None:
    a_study(a_search(tmp_path, trials=1), tmp_path / "study").run()
    for change in ({"score": "loss"}, {"space": {"momentum": [0.0, 0.1]}}):
        with pytest.raises(InvalidValue, match="resumed as it began"):
            a_study(a_search(tmp_path, trials=1, **change), tmp_path / "study").run()
    with pytest.raises(StoreError, match="belongs to the study 's'"):
        a_study(a_search(tmp_path, trials=1), tmp_path / "study", name="other").run()


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="momentum"):
        a_study(a_search(tmp_path, space={"momentum": [0.0, 2.0]}), tmp_path / "study").run()
    assert not (tmp_path / "study").exists()


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


@pytest.mark.whole
def test_a_search_of_twenty_trials_that_is_killed_and_resumed_loses_no_trial(tmp_path: Path) -> None:
    search = a_search(tmp_path, trials=20)
    (tmp_path / "run.toml").write_text(as_toml(search))
    command = [*LEHR, "search", "run.toml", "--study", "study", "-q"]
    begun: dict[int, TrialRow] = {}
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
PUBLIC = {"name": "digits", "declared": "public"}
SEARCH = Search(configuration=CONFIGURATION, space=Space.read(WINNER_SPACE), data=PUBLIC)


def parameters(place: int) -> Parameters:
    return SEARCH.space.chosen(lambda d: d.tried[min(place, len(d.tried) - 1)])


@pytest.mark.parametrize("place", [0, 1])
def test_the_winner_is_read_back_as_it_was_and_can_be_planned(tmp_path: Path, place: int) -> None:
    chosen = winning_configuration(SEARCH, parameters(place), settings_chosen_on="public")
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


def test_statements_of_the_configuration_stay_and_say_it_too() -> None:
    stated = {"settings_chosen_on": "fixed", "records": 1464}
    said = CONFIGURATION.with_values(privacy={"stated": stated})
    search = Search(configuration=said, space=SEARCH.space, data=SEARCH.data)
    privacy = winning_configuration(search, parameters(0), settings_chosen_on="public").privacy
    assert privacy["stated"] == {"settings_chosen_on": "public", "records": 1464}
    assert "settings_chosen_on" not in privacy


ROWS = [
    TrialRow(number=0, state="done", score=0.4, parameters={"optimizer": "adam", "learning_rate": 0.02}),
    TrialRow(number=1, state="done", score=0.6, parameters={"optimizer": "sgd", "learning_rate": 0.2, "momentum": 0.9}),
    TrialRow(
        number=2, state="failed", score=None, parameters={"optimizer": "adam", "learning_rate": 1.0}, note="diverged"
    ),
]


def new_study(folder: Path, **words: Any) -> Study:
    (folder / "study").mkdir()
    return a_study(a_search(folder, **words), folder / "study")


def test_the_best_trial_is_written_as_a_configuration_and_on_a_page(tmp_path: Path) -> None:
    finished = finish(new_study(tmp_path), ROWS)
    assert finished.best == ROWS[1]
    assert finished.winner is not None
    assert finished.winner.read_text().startswith("# Trial 1 of 3: ")
    assert RunConfig.read(finished.winner).method == {"clip_norm": 1.0, "learning_rate": 0.2, "momentum": 0.9}
    page = finished.page.read_text()
    assert "60.00%" in page
    assert "learning_rate = 0.2" in page
    assert "synthetic" in page


def test_where_nothing_was_scored_there_is_a_page_and_no_winner(tmp_path: Path) -> None:
    finished = finish(new_study(tmp_path), ROWS[2:])
    assert (finished.best, finished.winner) == (None, None)
    assert "diverged" in finished.page.read_text()


@pytest.mark.parametrize("factor", [1, 2])
def test_a_winner_that_costs_another_epsilon_than_the_configuration_says_so(tmp_path: Path, factor: int) -> None:
    study = new_study(tmp_path, space={"batch_factor": [1, 2]})
    winner = finish(study, [TrialRow(number=0, state="done", score=0.4, parameters={"batch_factor": factor})]).winner
    assert winner is not None
    _, plan = method_and_plan(RunConfig.read(winner))
    told = f"would cost ε = {at_most(plan.bound().epsilon)} at δ = 0.001"
    assert (told in winner.read_text()) == (factor == 2)


def test_without_optuna_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "lehr.search.study")
    with pytest.raises(MissingExtra, match=r"lehr\[search\]"):
        importlib.import_module("lehr.search.study")
