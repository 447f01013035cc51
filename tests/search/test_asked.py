from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.search.asked import Search

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
    _, plan = trial.method_and_plan()
    assert (plan.noise_multiplier, plan.expected_batch_size, plan.steps) == (2.0, 128, 20)
    assert plan.records == 500
    assert "settings_chosen_on" not in trial.privacy


def test_the_reference_run_is_on_the_records_of_the_configuration(tmp_path: Path) -> None:
    reference = read(tmp_path).reference({"learning_rate": 0.5, "batch_factor": 2, "method.clip_norm": 1.0})
    assert reference.data == {"name": "digits"}
    _, plan = reference.method_and_plan()
    assert (plan.expected_batch_size, plan.steps, plan.records) == (256, 5, 1464)
    assert reference.method["learning_rate"] == pytest.approx(2.0)


def test_trials_are_simulations_where_the_configuration_says_so_and_the_reference_is_none(tmp_path: Path) -> None:
    search = read(tmp_path, PRIVATE_DATA.replace("steps", "simulated_batch_size = 16\nsteps") + SEARCH)
    parameters = {"learning_rate": 0.5, "batch_factor": 2, "method.clip_norm": 1.0}
    _, plan = search.trial(parameters).method_and_plan()
    assert plan.simulates is not None
    assert (plan.expected_batch_size, plan.simulates.expected_batch_size, plan.steps) == (16, 256, 5)
    _, reference = search.reference(parameters).method_and_plan()
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


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere\.toml"):
        Search.read(tmp_path / "nowhere.toml")
    with pytest.raises(StoreError, match="not TOML"):
        read(tmp_path, "[search")


def test_what_decides_a_trial_is_in_the_json_form(tmp_path: Path) -> None:
    search = read(tmp_path)
    assert search.to_json() == read(tmp_path).to_json()
    assert replace(search, trials=99, sampler="tpe").to_json() == search.to_json()
    assert replace(search, score="loss").to_json() != search.to_json()
    changed = replace(search, configuration=search.configuration.with_words(method={"clip_norm": 9.0}))
    assert changed.to_json() != search.to_json()


def test_records_that_are_declared_with_a_slip_of_the_pen_are_not_taken_for_public(tmp_path: Path) -> None:
    slipped = read(tmp_path, PRIVATE_DATA + SEARCH.replace('"public"', '"pubic"'))
    with pytest.raises(InvalidValue, match="declared must be one of private, public, synthetic"):
        _ = slipped.declared
