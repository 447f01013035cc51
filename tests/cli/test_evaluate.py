"""``lehr evaluate`` and ``lehr predict``."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lehr.certificates.released_model import evaluate, predict
from lehr.data import load
from tests.cli.conftest import Run, RunJson
from tests.cli.released import released_model
from tests.written_runs import write_run


@pytest.fixture
def model(tmp_path: Path) -> str:
    return released_model(tmp_path)


def test_the_scores_are_those_of_the_library_and_carry_a_warning(lehr: Run, lehr_json: RunJson, model: str) -> None:
    said = lehr_json("evaluate", model, "--dataset", "digits")
    scores = evaluate(model, load("digits").test)
    assert said["records"] == len(load("digits").test)
    assert said["accuracy"] == scores.accuracy
    assert said["loss"] == scores.loss
    assert said["accuracy_by_class"] == list(scores.accuracy_by_class)
    assert "itself private" in said["note"]
    assert (said["votes"], said["augmentation"]) == (1, "none")
    shown = lehr("evaluate", model, "--dataset", "digits").stdout
    for words in ("accuracy", "loss", "class 9", "A score on private records is itself private"):
        assert words in shown


def test_views_vote_where_that_is_asked(lehr: Run, lehr_json: RunJson, model: str) -> None:
    options = ("--dataset", "digits", "--votes", "3", "--augmentation", "flip_crop")
    said = lehr_json("evaluate", model, *options)
    scores = evaluate(model, load("digits").test, augmentation="flip_crop", votes=3)
    assert (said["votes"], said["augmentation"]) == (3, "flip_crop")
    assert (said["accuracy"], said["loss"]) == (scores.accuracy, scores.loss)
    assert "3, by views of flip_crop" in lehr("evaluate", model, *options).stdout


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


@pytest.fixture
def image() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.arange(64, dtype=np.uint8).reshape(8, 8)


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_classes_and_probabilities_are_those_of_the_library(lehr: Run, model: str) -> None:
    lehr("predict", model, "--dataset", "digits", "--to", "predictions.csv")
    predicted = predict(model, load("digits").test.inputs)
    written = rows("predictions.csv")
    assert [int(row["class"]) for row in written] == predicted.classes.tolist()
    largest = predicted.probabilities.max(dim=1).values.tolist()
    assert [float(row["probability"]) for row in written] == pytest.approx(largest, abs=1e-6)
    assert [row["record"] for row in written[:2]] == ["0", "1"]


def test_views_vote_on_predictions(lehr: Run, model: str) -> None:
    lehr("predict", model, "--dataset", "digits", "--to", "voted.csv", "--votes", "3", "--augmentation", "flip_crop")
    predicted = predict(model, load("digits").test.inputs, augmentation="flip_crop", votes=3)
    written = rows("voted.csv")
    assert [int(row["class"]) for row in written] == predicted.classes.tolist()
    of_class = predicted.probabilities.gather(1, predicted.classes[:, None])[:, 0].tolist()
    assert [float(row["probability"]) for row in written] == pytest.approx(of_class, abs=1e-6)


def test_one_image_is_the_same_from_every_kind_of_file(
    lehr: Run, model: str, image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
) -> None:
    Image.fromarray(image).save("one.png")
    np.savez("one.npz", inputs=image[None, None])
    np.savez("grey.npz", x=image[None])
    Path("one-idx3-ubyte").write_bytes(
        b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (1, 8, 8)) + image.tobytes()
    )
    files = ("one.png", "one.npz", "grey.npz", "one-idx3-ubyte")
    lehr("predict", model, *files, "--to", "predictions.csv")
    written = rows("predictions.csv")
    assert [row["input"] for row in written] == list(files)
    expected = predict(model, torch.from_numpy(image)[None, None])
    assert {(row["class"], row["probability"]) for row in written} == {
        (str(expected.classes.item()), f"{expected.probabilities.max().item():.6f}")
    }


def test_without_a_file_it_is_printed(lehr: Run, lehr_json: RunJson, model: str) -> None:
    Image.new("L", (8, 8)).save("one.png")
    said = lehr("predict", model, "one.png").stdout
    assert said.splitlines()[0] == "input,record,class,probability"
    [prediction] = lehr_json("predict", model, "one.png")["predictions"]
    assert said.splitlines()[1].startswith(f"one.png,0,{prediction['class']},")


def test_a_file_that_is_there_is_replaced_only_where_that_is_asked(lehr: Run, model: str) -> None:
    Path("predictions.csv").write_text("mine")
    assert "--overwrite" in lehr("predict", model, "--dataset", "digits", "--to", "predictions.csv", code=3).stderr
    assert Path("predictions.csv").read_text() == "mine"
    lehr("predict", model, "--dataset", "digits", "--to", "predictions.csv", "--overwrite")


@pytest.mark.parametrize("name", ["no.png", "no.npz", "no-idx3-ubyte", "missing.png", "missing.npz"])
def test_a_file_that_cannot_be_read_is_named(lehr: Run, model: str, name: str) -> None:
    if name.startswith("no"):
        Path(name).write_bytes(b"nothing of the kind")
    assert name in lehr("predict", model, name, code=3).stderr


def test_something_must_be_asked_about(lehr: Run, model: str) -> None:
    assert "--dataset" in lehr("predict", model, code=2).stderr


def test_arrays_of_python_objects_are_refused(lehr: Run, model: str) -> None:
    np.savez("objects.npz", inputs=np.array([{}], dtype=object))
    assert "objects.npz" in lehr("predict", model, "objects.npz", code=3).stderr


def test_an_image_of_another_size_is_scaled_only_where_that_is_asked(lehr: Run, model: str) -> None:
    Image.new("RGB", (32, 24)).save("large.jpg")
    assert "--resize" in lehr("predict", model, "large.jpg", code=2).stderr
    lehr("predict", model, "large.jpg", "--resize")
