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
from tests.cli.conftest import Run, RunJson, released_model

DIGITS = ("--dataset", "digits")
VOTES = ("--votes", "3", "--augmentation", "flip_crop")


@pytest.fixture
def model(tmp_path: Path) -> str:
    return released_model(tmp_path)


def test_scores_are_those_of_the_library_and_carry_a_warning(lehr: Run, lehr_json: RunJson, model: str) -> None:
    answer = lehr_json("evaluate", model, *DIGITS)
    scores = evaluate(model, load("digits").test)
    assert answer["records"] == len(load("digits").test)
    assert (answer["accuracy"], answer["loss"]) == (scores.accuracy, scores.loss)
    assert answer["accuracy_by_class"] == list(scores.accuracy_by_class)
    assert (answer["votes"], answer["augmentation"]) == (1, "none")
    shown = lehr("evaluate", model, *DIGITS).stdout
    for words in ("accuracy", "loss", "class 9", answer["note"]):
        assert words in shown


def test_augmented_views_vote(lehr: Run, lehr_json: RunJson, model: str) -> None:
    answer, test = lehr_json("evaluate", model, *DIGITS, *VOTES), load("digits").test
    scores = evaluate(model, test, augmentation="flip_crop", votes=3)
    assert (answer["votes"], answer["augmentation"]) == (3, "flip_crop")
    assert (answer["accuracy"], answer["loss"]) == (scores.accuracy, scores.loss)
    lehr("predict", model, *DIGITS, "--to", "voted.csv", *VOTES)
    voted = predict(model, test.inputs, augmentation="flip_crop", votes=3)
    assert [int(row["class"]) for row in rows("voted.csv")] == voted.classes.tolist()


def test_records_that_training_saw_in_part_are_refused_unless_allowed(lehr: Run, tmp_path: Path) -> None:
    model = released_model(tmp_path, public_records="a part of the test records, not scored on")
    assert "dataset must be" in lehr("evaluate", model, *DIGITS, code=2).stderr
    lehr("evaluate", model, *DIGITS, "--allow-seen")


def test_records_come_from_files_and_folders(lehr: Run, lehr_json: RunJson, model: str) -> None:
    np.savez("records.npz", inputs=np.zeros((4, 1, 8, 8), np.uint8), targets=np.array([0, 0, 9, 9]))
    assert lehr_json("evaluate", model, "--npz", "records.npz")["records"] == 4
    for label in ("first", "second"):
        Path("images", label).mkdir(parents=True)
        Image.new("L", (8, 8), 100).save(Path("images", label, "one.png"))
    assert lehr_json("evaluate", model, "--folder", "images")["records"] == 2
    for label in ("first", "second"):
        Image.new("RGB", (32, 24), (9, 9, 9)).save(Path("images", label, "one.png"))
    assert "inputs must be" in lehr("evaluate", model, "--folder", "images", code=2).stderr
    assert lehr_json("evaluate", model, "--folder", "images", "--resize")["records"] == 2


def rows(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_predictions_are_those_of_the_library(lehr: Run, model: str) -> None:
    lehr("predict", model, *DIGITS, "--to", "predictions.csv")
    predicted = predict(model, load("digits").test.inputs)
    written = rows("predictions.csv")
    assert [int(row["class"]) for row in written] == predicted.classes.tolist()
    largest = predicted.probabilities.max(dim=1).values.tolist()
    assert [float(row["probability"]) for row in written] == pytest.approx(largest, abs=1e-6)
    assert [row["record"] for row in written[:2]] == ["0", "1"]
    lehr("predict", model, *DIGITS, "--to", "predictions.csv", "--overwrite")


def test_one_image_is_the_same_from_every_kind_of_file(lehr: Run, lehr_json: RunJson, model: str) -> None:
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(image).save("one.png")
    np.savez("one.npz", inputs=image[None, None])
    np.savez("grey.npz", x=image[None])
    header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (1, 8, 8))
    Path("one-idx3-ubyte").write_bytes(header + image.tobytes())
    files = ("one.png", "one.npz", "grey.npz", "one-idx3-ubyte")
    printed = list(csv.DictReader(lehr("predict", model, *files).stdout.splitlines()))
    assert [row["input"] for row in printed] == list(files)
    expected = predict(model, torch.from_numpy(image)[None, None])
    assert {(row["class"], row["probability"]) for row in printed} == {
        (str(expected.classes.item()), f"{expected.probabilities.max().item():.6f}")
    }
    [prediction] = lehr_json("predict", model, "one.png")["predictions"]
    assert prediction["class"] == expected.classes.item()


def test_image_of_another_size_is_scaled_only_when_asked(lehr: Run, model: str) -> None:
    Image.new("RGB", (32, 24)).save("large.jpg")
    assert "--resize" in lehr("predict", model, "large.jpg", code=2).stderr
    lehr("predict", model, "large.jpg", "--resize")


def test_arrays_of_python_objects_are_refused(lehr: Run, model: str) -> None:
    np.savez("objects.npz", inputs=np.array([{}], dtype=object))
    assert "objects.npz" in lehr("predict", model, "objects.npz", code=3).stderr
