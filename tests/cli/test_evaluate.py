from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lehr.data import load
from lehr.released_model import evaluate
from tests.cli.conftest import Run, RunJson
from tests.cli.released import released_model
from tests.written_runs import write_run


@pytest.fixture
def model(tmp_path: Path) -> str:
    return released_model(tmp_path)


def test_the_scores_are_those_of_the_library_and_carry_a_warning(lehr_json: RunJson, model: str) -> None:
    said = lehr_json("evaluate", model, "--dataset", "digits")
    scores = evaluate(model, load("digits").test)
    assert said["records"] == len(load("digits").test)
    assert said["accuracy"] == scores.accuracy
    assert said["loss"] == scores.loss
    assert said["accuracy_by_class"] == list(scores.accuracy_by_class)
    assert "itself private" in said["note"]


def test_a_person_sees_the_same_and_the_warning(lehr: Run, model: str) -> None:
    said = lehr("evaluate", model, "--dataset", "digits").stdout
    for words in ("accuracy", "loss", "class 9", "A score on private records is itself private"):
        assert words in said


def test_views_vote_where_that_is_asked(lehr: Run, lehr_json: RunJson, model: str) -> None:
    options = ("--dataset", "digits", "--votes", "3", "--augmentation", "flip_crop")
    said = lehr_json("evaluate", model, *options)
    scores = evaluate(model, load("digits").test, augmentation="flip_crop", votes=3)
    assert (said["votes"], said["augmentation"]) == (3, "flip_crop")
    assert (said["accuracy"], said["loss"]) == (scores.accuracy, scores.loss)
    assert "3, by views of flip_crop" in lehr("evaluate", model, *options).stdout


def test_without_votes_the_model_is_asked_once(lehr_json: RunJson, model: str) -> None:
    said = lehr_json("evaluate", model, "--dataset", "digits")
    assert (said["votes"], said["augmentation"]) == (1, "none")


def test_votes_of_a_model_trained_without_views_need_an_augmentation(lehr: Run, model: str) -> None:
    refused = lehr("evaluate", model, "--dataset", "digits", "--votes", "3", code=2).stderr
    assert "augmentation must be named where there are several votes" in " ".join(refused.split())


def test_records_of_which_training_saw_a_part_are_refused_unless_that_is_allowed(lehr: Run, tmp_path: Path) -> None:
    model = released_model(tmp_path, public_records="a part of the test records, not scored on")
    assert "a part of the test records" in lehr("evaluate", model, "--dataset", "digits", code=2).stderr
    lehr("evaluate", model, "--dataset", "digits", "--allow-seen")


def test_records_come_from_an_npz_file(lehr_json: RunJson, model: str) -> None:
    np.savez("records.npz", inputs=np.zeros((4, 1, 8, 8), np.uint8), targets=np.array([0, 0, 9, 9]))
    assert lehr_json("evaluate", model, "--npz", "records.npz")["records"] == 4


def test_images_come_from_folders_and_are_scaled_only_where_that_is_asked(
    lehr: Run, lehr_json: RunJson, model: str
) -> None:
    for label in ("first", "second"):
        Path("images", label).mkdir(parents=True)
        Image.new("L", (8, 8), 100).save(Path("images", label, "one.png"))
    assert lehr_json("evaluate", model, "--folder", "images")["records"] == 2
    for label in ("first", "second"):
        Image.new("RGB", (32, 24), (9, 9, 9)).save(Path("images", label, "one.png"))
    assert "inputs must be" in lehr("evaluate", model, "--folder", "images", code=2).stderr
    assert lehr_json("evaluate", model, "--folder", "images", "--resize")["records"] == 2


@pytest.mark.parametrize("options", [(), ("--dataset", "digits", "--npz", "records.npz")])
def test_exactly_one_set_of_records_is_asked_for(lehr: Run, model: str, options: tuple[str, ...]) -> None:
    assert "exactly one of" in lehr("evaluate", model, *options, code=2).stderr


def test_a_run_is_no_released_model(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    assert "config.json" in lehr("evaluate", "run", "--dataset", "digits", code=3).stderr
