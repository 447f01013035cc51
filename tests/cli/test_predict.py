from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lehr.data import load
from lehr.released_model import predict
from tests.cli.conftest import Run, RunJson
from tests.cli.released import released_model


@pytest.fixture
def model(tmp_path: Path) -> str:
    return released_model(tmp_path)


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


def test_views_vote_where_that_is_asked(lehr: Run, model: str) -> None:
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


def test_an_image_of_another_size_is_scaled_only_where_that_is_asked(lehr: Run, model: str) -> None:
    Image.new("RGB", (32, 24)).save("large.jpg")
    assert "--resize" in lehr("predict", model, "large.jpg", code=2).stderr
    lehr("predict", model, "large.jpg", "--resize")


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


def test_arrays_of_python_objects_are_refused(lehr: Run, model: str) -> None:
    np.savez("objects.npz", inputs=np.array([{}], dtype=object))
    assert "objects.npz" in lehr("predict", model, "objects.npz", code=3).stderr


def test_something_must_be_asked_about(lehr: Run, model: str) -> None:
    assert "--dataset" in lehr("predict", model, code=2).stderr
