"""A file that asks for a search, the runs that it describes, and what is refused before the first trial."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.config import RunConfig
from lehr.errors import BadRecord, InvalidValue
from lehr.search.request import Search, check_records, check_space
from lehr.search.space import Parameters, Space
from lehr.training.prepare import method_and_plan
from tests.search.searches import MODEL, free_search

PRIVATE_DATA = """
[data]
name = "digits"

[privacy]
noise_multiplier = 2.0
expected_batch_size = 128
steps = 20
delta = 1e-4
settings_chosen_on = "fixed"
"""
SEARCH = """
[search]
trials = 7
sampler = "random"

[search.data]
name = "own"
npz = "other.npz"
test_npz = "test.npz"
records = 500
num_classes = 10
declared = "public"

[search.space]
learning_rate = { low = 0.1, high = 1, log = true }
batch_factor = [1, 2]
method.clip_norm = [0.1, 1.0]
"""
PARAMETERS: Parameters = {"learning_rate": 0.5, "batch_factor": 2, "method.clip_norm": 1.0}


def read(folder: Path, text: str = PRIVATE_DATA + SEARCH, **words: Any) -> Search:
    path = folder / "run.toml"
    path.write_text(text)
    return Search.read(path, words=words)


def test_a_file_is_read_and_words_override_it(tmp_path: Path) -> None:
    search = read(tmp_path, privacy={"steps": 9})
    assert (search.trials, search.sampler, search.declared) == (7, "random", "public")
    assert list(search.space.distributions) == ["learning_rate", "batch_factor", "method.clip_norm"]
    assert search.plan.steps == 9


def test_a_trial_has_the_noise_of_the_reference_run_on_the_records_of_the_search(tmp_path: Path) -> None:
    trial = read(tmp_path).trial({**PARAMETERS, "batch_factor": 1})
    _, plan = method_and_plan(trial)
    assert (plan.noise_multiplier, plan.expected_batch_size, plan.steps, plan.records) == (2.0, 128, 20, 500)
    assert "settings_chosen_on" not in trial.privacy
    given = replace(read(tmp_path).plan, noise_multiplier=7.0)
    assert read(tmp_path).trial({"learning_rate": 0.5}, plan=given).privacy["noise_multiplier"] == 7.0


def test_the_reference_run_is_on_the_records_of_the_configuration(tmp_path: Path) -> None:
    reference = read(tmp_path).reference(PARAMETERS)
    assert reference.data == {"name": "digits"}
    _, plan = method_and_plan(reference)
    assert (plan.expected_batch_size, plan.steps, plan.records) == (256, 5, 1464)
    assert reference.method["learning_rate"] == pytest.approx(2.0)


def test_trials_may_be_simulations_and_the_reference_is_none(tmp_path: Path) -> None:
    search = read(tmp_path, PRIVATE_DATA.replace("steps", "simulated_batch_size = 16\nsteps") + SEARCH)
    _, plan = method_and_plan(search.trial(PARAMETERS))
    assert plan.simulates is not None
    assert (plan.expected_batch_size, plan.simulates.expected_batch_size, plan.steps) == (16, 256, 5)
    _, reference = method_and_plan(search.reference(PARAMETERS))
    assert reference.simulates is None


def test_without_a_space_the_usual_settings_are_varied(tmp_path: Path) -> None:
    search = read(tmp_path, PRIVATE_DATA)
    assert {"optimizer", "batch_factor"} <= search.space.distributions.keys()
    assert search.declared == "private"


@pytest.mark.parametrize(
    "text",
    [
        "[search]\ntrial = 3\n",
        "search = 3\n",
        "[search]\ntrials = 0\n",
        '[search]\nscore = "f1"\n',
        "[search]\nseed = -1\n",
        "[search.data]\nnmae = 1\n",
        "[serach]\n",
        PRIVATE_DATA + SEARCH.replace('"public"', '"pubic"'),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidValue):
        read(tmp_path, text)


def test_the_file_in_the_documentation_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "search.md"
    [text] = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    search = read(tmp_path, text)
    assert (search.trials, search.declared) == (40, "public")


def test_what_decides_a_trial_is_in_the_json_form(tmp_path: Path) -> None:
    search = read(tmp_path)
    assert replace(search, trials=99, sampler="tpe").to_json() == search.to_json()
    assert replace(search, score="loss").to_json() != search.to_json()
    changed = replace(search, configuration=search.configuration.with_values(method={"clip_norm": 9.0}))
    assert changed.to_json() != search.to_json()


PRIVACY = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def check(space: dict[str, Any], **words: Any) -> None:
    data = words.pop("data", {"name": "digits", "declared": "public"})
    configuration = RunConfig.of(data=data, privacy=PRIVACY).with_values(**words)
    check_space(Search(configuration=configuration, space=Space.read(space)))


@pytest.mark.parametrize(
    "space, given",
    [
        ({"optimizer": ["sgd", "lbfgs"]}, "lbfgs"),
        ({"learning_rate": [0.1, -1.0]}, -1.0),
        ({"momentum": {"low": 0.0, "high": 1.5}}, 1.5),
        ({"optimizer": ["adam"], "momentum": [0.9]}, 0.9),  # it never applies
        ({"ema_decay": [0.9, 1.5]}, 1.5),
        ({"augmentation": ["flip"]}, "flip"),
        ({"network": ["small_cnn", "resnet"]}, "resnet"),
        ({"network": [{"network": "small_cnn", "depth": 3}]}, None),
        ({"batch_factor": [1, 100]}, 100),  # there are not so many records
        ({"method.clip_nrom": [1.0]}, 1.0),
        ({"method.clip_norm": [1.0, 0.0]}, 0.0),
        ({"model.image_side": [8, 9]}, None),
    ],
)
def test_an_impossible_value_is_named_before_the_first_trial(space: dict[str, Any], given: object) -> None:
    [key] = [key for key in space if key != "optimizer"] or ["optimizer"]
    words = {"model": {"network": "paper_cnn"}} if key.startswith("model.") else {}
    with pytest.raises(InvalidValue) as error:
        check(space, **words)
    assert error.value.name == f"{key} of [search.space]"
    assert given is None or str(given) in str(error.value)


def test_a_batch_is_scaled_only_where_all_steps_are_alike() -> None:
    schedule = {"kind": "cosine", "total_steps": 16, "final_fraction": 0.1}
    with pytest.raises(InvalidValue, match="batch_factor"):
        check({"batch_factor": [1, 2]}, method={"schedule": schedule})


def test_a_search_needs_records_to_score_on() -> None:
    data = {"npz": "own.npz", "records": 1000, "num_classes": 2, "declared": "public"}
    with pytest.raises(InvalidValue, match="test records"):
        check({"momentum": [0.0]}, data=data)
    check({"momentum": [0.0]}, data={**data, "test_npz": "test.npz"})
    check({"momentum": [0.0]}, data=data, training={"held_out_fraction": 0.2})


def test_an_error_of_the_configuration_itself_is_not_blamed_on_a_setting() -> None:
    with pytest.raises(InvalidValue) as error:
        check({"momentum": [0.0]}, data={"name": "cifar10", "declared": "public"})
    assert "search.space" not in str(error.value)


@pytest.mark.parametrize(
    "space, words, error",
    [
        ({"momentum": [0.0, 0.9]}, {}, None),
        ({"momentum": [0.0, 0.9]}, {"model": {"in_channels": 3}}, InvalidValue),
        ({"network": [MODEL, {**MODEL, "in_channels": 3}]}, {}, InvalidValue),
        ({"model.in_channels": [1, 3]}, {}, InvalidValue),
        ({"momentum": [0.0, 0.9]}, {"data": {"num_classes": 2}}, BadRecord),
    ],
)
def test_records_that_cannot_be_used_or_do_not_fit_a_network_are_refused(
    tmp_path: Path, space: dict[str, Any], words: dict[str, Any], error: type[Exception] | None
) -> None:
    asked = free_search(tmp_path, space=space)
    search = replace(asked, configuration=asked.configuration.with_values(**words))
    if error is None:
        check_records(search)
    else:
        with pytest.raises(error):
            check_records(search)
