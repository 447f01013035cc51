"""TODO."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lehr.config import RunConfig
from lehr.errors import BadRecord, InvalidValue
from lehr.search.request import Search, check_records, check_space, free_terms
from lehr.search.space import Space
from lehr.training.prepare import method_and_plan
from tests.search.synthetic import MODEL, a_search

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


def read(folder: Path, text: str = PRIVATE_DATA + SEARCH) -> Search:
    path = folder / "run.toml"
    path.write_text(text)
    return Search.read(path)


def test_a_file_is_read_with_what_it_says_of_the_search(tmp_path: Path) -> None:
    search = read(tmp_path)
    assert (search.trials, search.sampler, search.declared) == (7, "random", "public")
    assert [d.name for d in search.space.dimensions] == ["learning_rate", "batch_factor", "method.clip_norm"]


def test_a_trial_has_the_noise_of_the_reference_run_on_the_records_of_the_search(tmp_path: Path) -> None:
    search = read(tmp_path)
    trial = search.trial({"learning_rate": 0.5, "batch_factor": 1, "method.clip_norm": 1.0})
    assert trial.data["records"] == 500
    _, plan = method_and_plan(trial)
    assert (plan.noise_multiplier, plan.expected_batch_size, plan.steps) == (2.0, 128, 20)
    assert plan.records == 500
    assert "settings_chosen_on" not in trial.privacy


def test_the_reference_run_is_on_the_records_of_the_configuration(tmp_path: Path) -> None:
    reference = read(tmp_path).reference({"learning_rate": 0.5, "batch_factor": 2, "method.clip_norm": 1.0})
    assert reference.data == {"name": "digits"}
    _, plan = method_and_plan(reference)
    assert (plan.expected_batch_size, plan.steps, plan.records) == (256, 5, 1464)
    assert reference.method["learning_rate"] == pytest.approx(2.0)


def test_trials_are_simulations_where_the_configuration_says_so_and_the_reference_is_none(tmp_path: Path) -> None:
    search = read(tmp_path, PRIVATE_DATA.replace("steps", "simulated_batch_size = 16\nsteps") + SEARCH)
    parameters = {"learning_rate": 0.5, "batch_factor": 2, "method.clip_norm": 1.0}
    _, plan = method_and_plan(search.trial(parameters))
    assert plan.simulates is not None
    assert (plan.expected_batch_size, plan.simulates.expected_batch_size, plan.steps) == (16, 256, 5)
    _, reference = method_and_plan(search.reference(parameters))
    assert reference.simulates is None


def test_a_plan_that_is_given_takes_the_place_of_the_numbers(tmp_path: Path) -> None:
    search = read(tmp_path)
    given = replace(search.plan, noise_multiplier=7.0)
    assert search.trial({"learning_rate": 0.5}, plan=given).privacy["noise_multiplier"] == 7.0


def test_words_go_over_what_the_file_says(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(PRIVATE_DATA + SEARCH)
    assert Search.read(path, words={"privacy": {"steps": 9}}).plan.steps == 9


def test_without_a_space_the_usual_settings_are_varied(tmp_path: Path) -> None:
    search = read(tmp_path, PRIVATE_DATA)
    assert "optimizer" in search.space
    assert "batch_factor" in search.space
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
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidValue):
        read(tmp_path, text)


def test_the_file_on_the_page_of_the_documentation_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "search.md"
    [text] = re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    search = read(tmp_path, text)
    assert (search.trials, search.declared) == (40, "public")
    assert "batch_factor" in search.space


def test_what_decides_a_trial_is_in_the_json_form(tmp_path: Path) -> None:
    search = read(tmp_path)
    assert search.to_json() == read(tmp_path).to_json()
    assert replace(search, trials=99, sampler="tpe").to_json() == search.to_json()
    assert replace(search, score="loss").to_json() != search.to_json()
    changed = replace(search, configuration=search.configuration.with_values(method={"clip_norm": 9.0}))
    assert changed.to_json() != search.to_json()


def test_records_that_are_declared_with_a_slip_of_the_pen_are_not_taken_for_public(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="declared must be one of private, public, synthetic"):
        read(tmp_path, PRIVATE_DATA + SEARCH.replace('"public"', '"pubic"'))


PRIVACY = {"noise_multiplier": 1.0, "expected_batch_size": 64, "steps": 16, "delta": 1e-4}


def check(space: dict[str, Any], **words: Any) -> None:
    data = words.pop("data", {"name": "digits", "declared": "public"})
    configuration = RunConfig.of(data=data, privacy=PRIVACY).with_values(**words)
    check_space(Search(configuration=configuration, space=Space.read(space)))


@pytest.mark.parametrize(
    "space, named",
    [
        ({"optimizer": ["sgd", "lbfgs"]}, "'lbfgs'"),
        ({"learning_rate": [0.1, -1.0]}, r"-1\.0"),
        ({"momentum": {"low": 0.0, "high": 1.5}}, r"1\.5"),
        ({"optimizer": ["adam"], "momentum": [0.9]}, "never applies"),
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


def unfit(space: dict[str, Any], folder: Path, **words: Any) -> None:
    asked = a_search(folder, space=space)
    configuration = asked.configuration.with_values(**words)
    check_records(Search(configuration=configuration, space=asked.space))


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


def declared(data: dict[str, Any], search_data: dict[str, Any] | None = None) -> Search:
    return Search(configuration=RunConfig.of(data=data), space=Space.read({"momentum": [0.0]}), data=search_data)


def test_public_and_synthetic_records_are_searched_on_for_nothing() -> None:
    for word in ("public", "synthetic"):
        terms = free_terms(declared({"declared": word}))
        assert word in terms.words
        assert terms.settings_chosen_on == "public"


def test_private_records_are_refused_with_the_ways_that_there_are() -> None:
    with pytest.raises(InvalidValue, match=r"public or synthetic.*paid for"):
        free_terms(declared({"name": "digits"}))
