from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.configuration import Configuration
from lehr.errors import BadRecord, InvalidValue
from lehr.search.asked import Search
from lehr.search.checking import refuse_unfit_records, refuse_what_cannot_be_tried
from lehr.search.space import Space
from tests.search.synthetic import MODEL, a_search

PRIVACY = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def check(space: dict[str, Any], **words: Any) -> None:
    data = words.pop("data", {"name": "digits", "declared": "public"})
    configuration = Configuration(data=data, privacy=PRIVACY).with_words(**words)
    refuse_what_cannot_be_tried(Search(configuration=configuration, space=Space.read(space)))


@pytest.mark.parametrize(
    "space, named",
    [
        ({"optimizer": ["sgd", "lbfgs"]}, "'lbfgs'"),
        ({"learning_rate": [0.1, -1.0]}, r"-1\.0"),
        ({"momentum": {"low": 0.0, "high": 1.5}}, r"1\.5"),
        ({"optimizer": ["adam"], "momentum": [0.9]}, "never asked for"),
        ({"ema_decay": [0.9, 1.5]}, r"1\.5"),
        ({"augmentation": ["flip"]}, "'flip'"),
        ({"network": ["small_cnn", "resnet"]}, "'resnet'"),
        ({"network": [{"network": "small_cnn", "depth": 3}]}, "depth"),
        ({"batch_factor": [1, 100]}, "at most the 1464 records"),
        ({"method.clip_nrom": [1.0]}, "clip_nrom"),
        ({"method.clip_norm": [1.0, 0.0]}, "clip_norm"),
        ({"model.image_side": [8, 9]}, "model.image_side"),
    ],
)
def test_a_value_that_cannot_be_had_is_named_before_the_first_trial(space: dict[str, Any], named: str) -> None:
    [key] = [key for key in space if key != "optimizer"] or ["optimizer"]
    words = {"model": {"network": "paper_cnn"}} if key.startswith("model.") else {}
    with pytest.raises(InvalidValue, match=named) as error:
        check(space, **words)
    assert key in str(error.value)


def test_a_value_in_the_middle_is_tried_beside_whatever_it_is_asked_for_with() -> None:
    with pytest.raises(InvalidValue, match="dampening"):
        check({"optimizer": ["adam", "sgd", "adamw"], "momentum": [0.0, 0.9], "dampening": [0.5, 2.0]})


def test_a_batch_is_scaled_only_where_all_steps_are_alike() -> None:
    schedule = {"kind": "cosine", "total_steps": 16, "final_fraction": 0.1}
    with pytest.raises(InvalidValue, match="constant learning rate"):
        check({"batch_factor": [1, 2]}, method={"schedule": schedule})


def test_a_search_needs_records_to_score_on() -> None:
    data = {"npz": "own.npz", "records": 1000, "num_classes": 2, "declared": "public"}
    with pytest.raises(InvalidValue, match="test records"):
        check({"momentum": [0.0]}, data=data)
    check({"momentum": [0.0]}, data={**data, "test_npz": "test.npz"})
    check({"momentum": [0.0]}, data=data, training={"held_out_fraction": 0.2})


def test_what_is_wrong_with_the_configuration_itself_is_not_blamed_on_a_setting() -> None:
    with pytest.raises(InvalidValue) as error:
        check({"momentum": [0.0]}, data={"name": "cifar10", "declared": "public"})
    assert "search.space" not in str(error.value)


def test_a_good_space_passes_without_reading_a_record(tmp_path: Path) -> None:
    data = {"npz": str(tmp_path / "nowhere.npz"), "test_npz": "nowhere.npz", "records": 1000, "num_classes": 2}
    check({"optimizer": ["sgd", "adamw"], "momentum": [0.0, 0.9], "views": [1, 2]}, data={**data, "declared": "public"})


def unfit(space: dict[str, Any], folder: Path, **words: Any) -> None:
    asked = a_search(folder, space=space)
    configuration = asked.configuration.with_words(**words)
    refuse_unfit_records(Search(configuration=configuration, space=asked.space))


def test_a_network_that_does_not_take_the_records_is_named_before_the_first_trial(tmp_path: Path) -> None:
    unfit({"momentum": [0.0, 0.9]}, tmp_path)
    with pytest.raises(InvalidValue, match=r"takes records of shape \(1, 4, 4\)"):
        unfit({"momentum": [0.0, 0.9]}, tmp_path, model={"in_channels": 3})
    with pytest.raises(InvalidValue, match=r"takes records of shape \(1, 4, 4\)"):
        unfit({"network": [MODEL, {**MODEL, "in_channels": 3}]}, tmp_path)
    with pytest.raises(InvalidValue, match=r"takes records of shape \(1, 4, 4\)"):
        unfit({"model.in_channels": [1, 3]}, tmp_path)


def test_records_that_cannot_be_used_are_named_before_the_first_trial(tmp_path: Path) -> None:
    with pytest.raises(BadRecord, match="its label is 2"):
        unfit({"momentum": [0.0, 0.9]}, tmp_path, data={"num_classes": 2})
