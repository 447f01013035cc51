from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lehr import networks
from lehr.certificates.release import release
from lehr.certificates.released_model import augmented_prediction, evaluate, load, predict
from lehr.data import InMemory
from lehr.data.augmentation import AugmentedPrediction, augmentation_by_name
from lehr.errors import BadRecord, DamagedFile, InvalidValue, LehrError, StoreError
from tests.written_runs import configuration, small_model, write_run

ARGUMENTS = {"image_side": 8, "num_classes": 3}


def released(
    tmp_path: Path, *, model: nn.Module | None = None, network: dict[str, Any] | None = None, **sections: Any
) -> Path:
    config = configuration(**sections, model=network or {})
    files = write_run(tmp_path / "run", config=config, model=model)
    release(files.directory, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("once"), data={"preparation": {"mean": [0.5], "std": [0.25]}})


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    """A released model of the small network, which is one of the trainer's own."""
    return Path(shutil.copytree(template, tmp_path / "model"))


@pytest.fixture
def records() -> InMemory:
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (1201, 1, 8, 8), dtype=torch.uint8, generator=generator)
    return InMemory(images, torch.randint(0, 2, (1201,), generator=generator))


def test_a_network_of_lehr_is_built_by_its_name_with_the_released_weights(tmp_path: Path) -> None:
    trained = networks.build("small_cnn", **ARGUMENTS)
    folder = released(tmp_path, model=trained, network={"network": "small_cnn", "arguments": ARGUMENTS})
    before = torch.get_rng_state()
    loaded = load(folder)
    assert torch.get_rng_state().equal(before)
    assert not loaded.training
    for name, value in trained.state_dict().items():
        assert loaded.state_dict()[name].equal(value)


def rewrite(folder: Path, **sections: Any) -> None:
    path = folder / "config.json"
    shape = json.loads(path.read_text())
    for name, section in sections.items():
        shape[name] = {**shape[name], **section} if isinstance(section, dict) else section
    path.write_text(json.dumps(shape))


def test_a_network_of_ones_own_is_needed_and_filled(folder: Path) -> None:
    with pytest.raises(InvalidValue, match="model"):
        load(folder)
    model = small_model(seed=9)
    assert load(folder, model) is model
    assert all(value.equal(small_model().state_dict()[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "other, name",
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), "1.bias"),
        (nn.Sequential(nn.Linear(64, 3)), "0.bias"),
        (nn.Sequential(nn.Flatten()), "1.bias"),
    ],
)
def test_another_network_is_refused_with_what_differs(folder: Path, other: nn.Module, name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        load(folder, other)


def test_scores_are_those_of_a_plain_loop(folder: Path, records: InMemory) -> None:
    model = small_model()
    outputs = model((records.inputs / 255 - 0.5) / 0.25).double()
    right = outputs.argmax(dim=1) == records.targets
    scores = evaluate(folder, records, small_model(seed=9))
    assert scores.records == 1201
    assert scores.loss == pytest.approx(nn.functional.cross_entropy(outputs, records.targets).item())
    assert scores.accuracy == pytest.approx(right.double().mean().item())
    by_class = [right[records.targets == label].double().mean().item() for label in (0, 1)]
    *found, without_records = scores.accuracy_by_class
    assert found == pytest.approx(by_class)
    assert without_records is None


def test_predictions_are_classes_and_probabilities(folder: Path, records: InMemory) -> None:
    predicted = predict(folder, records.inputs, small_model(seed=9))
    outputs = small_model()((records.inputs / 255 - 0.5) / 0.25).double()
    assert predicted.classes.equal(outputs.argmax(dim=1))
    assert predicted.probabilities.allclose(outputs.softmax(dim=1))
    as_numbers = predict(folder, records.inputs / 255, small_model(seed=9))
    assert as_numbers.probabilities.allclose(predicted.probabilities)


@pytest.mark.parametrize("said", [{}, {"augmentation": "flip_crop", "votes": 3}])
def test_no_inputs_give_no_predictions(folder: Path, said: dict[str, Any]) -> None:
    assert predict(folder, torch.zeros(0, 1, 8, 8), small_model(), **said).probabilities.shape == (0, 3)


@pytest.mark.parametrize(
    "inputs", [torch.zeros(2, 1, 9, 9), torch.zeros(1, 8, 8), torch.zeros(2, 1, 8, 8, dtype=torch.int64), [0.0]]
)
def test_other_inputs_are_refused(folder: Path, inputs: Any) -> None:
    with pytest.raises(InvalidValue, match="inputs"):
        predict(folder, inputs, small_model())


def trained_with(augmentation: str) -> dict[str, Any]:
    return {"training": {"augmentation": augmentation_by_name(augmentation).to_json(), "views": 4}}


def test_a_vote_is_the_majority_of_a_plain_loop_over_views(folder: Path, records: InMemory) -> None:
    model, labels = small_model(), records.targets[:120]
    views = AugmentedPrediction(augmentation=augmentation_by_name("flip_crop"), votes=5).views(
        records.inputs[:120] / 255
    )
    mean, right = torch.zeros(120, 3, dtype=torch.float64), []
    for place, view in enumerate(views):
        probabilities = model((view - 0.5) / 0.25).detach().double().softmax(dim=1)
        mean[place] = probabilities.mean(dim=0)
        votes = probabilities.argmax(dim=1).bincount(minlength=3)
        first = max(range(3), key=lambda label: (int(votes[label]), float(mean[place, label])))
        right.append(first == labels[place])
    predicted = predict(folder, records.inputs[:120], model, augmentation="flip_crop", votes=5)
    assert predicted.probabilities.allclose(mean)
    assert (predicted.classes == labels).tolist() == right
    scores = evaluate(folder, InMemory(records.inputs[:120], labels), model, augmentation="flip_crop", votes=5)
    assert scores.accuracy == pytest.approx(sum(right) / 120)
    assert scores.loss == pytest.approx(nn.functional.nll_loss(mean.log(), labels).item())


def test_several_votes_are_by_the_augmentation_of_training(tmp_path: Path, records: InMemory) -> None:
    folder, model = released(tmp_path, **trained_with("flip_crop")), small_model()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"votes": 3}, "flip_crop"),
        ({"votes": 3, "augmentation": "ours"}, "ours"),
        ({"votes": 1}, "none"),
    ]
    for said, name in cases:
        expected = AugmentedPrediction(augmentation=augmentation_by_name(name), votes=said["votes"])
        assert augmented_prediction(folder, **said) == expected
    trained = predict(folder, records.inputs[:20], model, votes=3).probabilities
    by_name = predict(folder, records.inputs[:20], model, votes=3, augmentation="flip_crop").probabilities
    assert trained.equal(by_name)
    alone = predict(folder, records.inputs[:20], model).probabilities
    assert not trained.equal(alone)
    assert predict(folder, records.inputs[:20], model, augmentation="none", votes=3).probabilities.equal(alone)


def test_votes_of_a_model_that_saw_no_views_need_an_augmentation(folder: Path, tmp_path: Path) -> None:
    without_any = released(tmp_path / "other", **trained_with("none"))
    for model in (folder, without_any):
        with pytest.raises(InvalidValue, match="augmentation must be named where there are several votes"):
            augmented_prediction(model, votes=2)


@pytest.mark.parametrize(
    "said, name",
    [
        ({"votes": 0}, "votes"),
        ({"votes": 2.5, "augmentation": "ours"}, "votes"),
        ({"augmentation": "mixup"}, "augmentation"),
        ({"augmentation": ""}, "augmentation"),
    ],
)
def test_other_votes_are_refused_by_name(folder: Path, said: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        predict(folder, torch.zeros(1, 1, 8, 8), small_model(), **said)


def test_a_label_out_of_range_is_named(folder: Path, records: InMemory) -> None:
    records.targets[700] = 3
    with pytest.raises(BadRecord, match="record 700"):
        evaluate(folder, records, small_model())


def test_a_folder_that_is_no_released_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        load(tmp_path)
    with pytest.raises(StoreError, match="a run, which `lehr release`"):
        load(write_run(tmp_path / "run").directory, small_model())


@pytest.mark.parametrize(
    "sections",
    [
        {"format": "lehr-run"},
        {"format_version": 2},
        {"data": {"num_classes": 0}},
        {"data": {"shape": "1x8x8"}},
        {"data": {"shape": [1, -8, 8]}},
        {"data": {"preparation": {"mean": [0.5], "std": [0.0]}}},
        {"model": {"network": "os.system", "arguments": {}}},
        {"model": {"network": "small_cnn", "arguments": {"activation": "__import__"}}},
        {"model": {"network": "small_cnn", "arguments": {"image_side": "8"}}},
        {"model": {"network": "small_cnn", "arguments": {"num_classes": "ten"}}},
        {"model": {"network": "small_cnn", "arguments": []}},
        {"model": {"network": ["small_cnn"], "arguments": {}}},
        {"surplus": 1},
    ],
)
def test_a_configuration_that_was_changed_is_refused_and_runs_nothing(folder: Path, sections: dict[str, Any]) -> None:
    rewrite(folder, **sections)
    with pytest.raises(LehrError):
        load(folder)


@pytest.mark.parametrize("content", [None, b"", b"\x80\x04.", b"\xff" * 64])
def test_weights_that_cannot_be_read_are_refused(folder: Path, content: bytes | None) -> None:
    path = folder / "model.safetensors"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        load(folder, small_model())


def test_weights_that_are_no_numbers_are_refused(folder: Path) -> None:
    weights = small_model().state_dict()
    weights["1.bias"][0] = float("inf")
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(DamagedFile, match=r"1\.bias"):
        load(folder, small_model())


def test_a_network_that_the_weights_are_not_of_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    arguments = {"image_side": 100_000, "in_channels": 1, "num_classes": 3}  # eighty gigabytes
    config = configuration(model={"network": "small_cnn", "arguments": arguments})
    release(write_run(tmp_path / "run", config=config).directory, tmp_path / "model")
    with pytest.raises(InvalidValue, match=r"the network that the weights are of|bytes of small_cnn must be at most"):
        load(tmp_path / "model")
