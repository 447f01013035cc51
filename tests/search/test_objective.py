from __future__ import annotations

import math
from pathlib import Path

import pytest

from lehr.configuration import Configuration
from lehr.errors import InvalidValue, StoreError
from lehr.run_shape import Callback, Evaluation, RunFiles
from lehr.search.objective import Outcome, Watched, began, tried, worst
from tests.search.synthetic import MODEL, PRIVACY, written


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(data=written(tmp_path), model=MODEL, privacy=PRIVACY, training={"evaluate_every": 1})


class Stopping(Callback):
    """What a process does that is killed after a score."""

    def evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.step == 2:
            raise KeyboardInterrupt


def test_a_trial_has_the_score_of_its_last_evaluation(configuration: Configuration, tmp_path: Path) -> None:
    seen: list[Evaluation] = []

    class Seeing(Callback):
        def evaluated(self, evaluation: Evaluation) -> None:
            seen.append(evaluation)

    outcome = tried(configuration, tmp_path / "run", score="loss", callbacks=[Seeing()])
    assert outcome == Outcome(score=seen[-1].loss)
    assert seen[-1].step == 4


def test_a_run_that_was_stopped_goes_on_and_one_that_is_over_is_not_run_again(
    configuration: Configuration, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried(configuration, tmp_path / "run", score="accuracy", callbacks=[Stopping()])
    assert began(tmp_path / "run")
    key = RunFiles(tmp_path / "run").key.read_bytes()
    first = tried(configuration, tmp_path / "run", score="accuracy")
    model = RunFiles(tmp_path / "run").model.read_bytes()
    assert tried(configuration, tmp_path / "run", score="accuracy") == first
    assert RunFiles(tmp_path / "run").key.read_bytes() == key
    assert RunFiles(tmp_path / "run").model.read_bytes() == model


def test_a_folder_in_which_no_run_began_is_made_anew(configuration: Configuration, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert tried(configuration, tmp_path / "run", score="accuracy").note == ""


def test_a_run_that_diverges_has_the_worst_score_and_a_note(configuration: Configuration, tmp_path: Path) -> None:
    wild = configuration.with_words(method={"learning_rate": 1e38, "clip_norm": 1e6})
    outcome = tried(wild, tmp_path / "run", score="loss")
    assert outcome.score == math.inf
    assert "finite" in outcome.note or "loss" in outcome.note


def test_settings_that_no_run_can_be_made_of_have_the_worst_score_and_a_note(
    configuration: Configuration, tmp_path: Path
) -> None:
    wrong = configuration.with_words(model={"image_side": 8})
    outcome = tried(wrong, tmp_path / "run", score="accuracy")
    assert outcome.score == 0
    assert outcome.note


def test_a_run_that_began_otherwise_is_an_error_and_no_score(configuration: Configuration, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried(configuration, tmp_path / "run", score="accuracy", callbacks=[Stopping()])
    with pytest.raises(InvalidValue, match="resumed as it began"):
        tried(configuration.with_words(method={"learning_rate": 0.1}), tmp_path / "run", score="accuracy")


def test_what_is_wrong_with_the_files_stops_the_search(configuration: Configuration, tmp_path: Path) -> None:
    lost = configuration.with_words(data={"npz": str(tmp_path / "nowhere.npz")})
    with pytest.raises(StoreError):
        tried(lost, tmp_path / "run", score="accuracy")


def test_evaluations_are_reported_by_their_number_and_a_hopeless_run_is_stopped(
    configuration: Configuration, tmp_path: Path
) -> None:
    reported: list[int] = []
    alive: list[bool] = []
    watched = Watched(
        tmp_path / "run",
        score="accuracy",
        report=lambda value, place: reported.append(place),
        is_hopeless=lambda: len(reported) == 3,
        alive=lambda: alive.append(True),
    )
    outcome = tried(configuration, tmp_path / "run", score="accuracy", callbacks=[watched])
    assert outcome.is_pruned
    assert reported == [1, 2, 3]
    assert len(alive) > 3


def test_a_run_is_not_given_up_at_its_end(configuration: Configuration, tmp_path: Path) -> None:
    watched = Watched(
        tmp_path / "run",
        score="accuracy",
        report=lambda value, place: None,
        is_hopeless=lambda: True,
        alive=lambda: None,
    )
    once = configuration.with_words(training={"evaluate_every": 4})
    assert not tried(once, tmp_path / "run", score="accuracy", callbacks=[watched]).is_pruned


def test_nothing_is_worse_than_the_worst() -> None:
    assert worst("accuracy") == 0
    assert worst("loss") == math.inf
