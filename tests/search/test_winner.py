from __future__ import annotations

import math
from pathlib import Path

from lehr.configuration import Configuration
from lehr.search.asked import Search
from lehr.search.space import Parameters, Space
from lehr.search.winner import winning, write

SPACE = {
    "optimizer": ["sgd", "adamw"],
    "learning_rate": [0.25],
    "momentum": [0.9],
    "dampening": [0.9],
    "ema_decay": [0.99],
    "augmentation": ["flip_crop"],
    "views": [2],
    "network": [{"network": "small_cnn", "activation": "tanh"}],
    "batch_factor": [2],
    "method.clip_norm": [0.3],
}
CONFIGURATION = Configuration(
    data={"name": "digits"},
    privacy={"epsilon": 4.0, "expected_batch_size": 64, "steps": 16, "simulated_batch_size": 8, "delta": 1e-4},
)
SEARCH = Search(configuration=CONFIGURATION, space=Space.read(SPACE), data={"name": "digits", "declared": "public"})


def parameters(place: int) -> Parameters:
    return SEARCH.space.chosen(lambda d: d.tried[min(place, len(d.tried) - 1)])


def read_back(folder: Path, place: int) -> tuple[Configuration, Configuration]:
    chosen = winning(SEARCH, parameters(place), settings_chosen_on="public")
    write(folder / "winner.toml", chosen, about="The best of\ntwo trials")
    return chosen, Configuration.read(folder / "winner.toml")


def test_the_winner_is_read_back_as_it_was_and_can_be_planned(tmp_path: Path) -> None:
    for place in (0, 1):
        chosen, read = read_back(tmp_path, place)
        assert read == chosen
        method, plan = read.method_and_plan()
        assert plan.bound().epsilon <= 4.0
        assert plan.simulates is None
        assert (plan.expected_batch_size, plan.steps) == (128, 4)
        assert math.isclose(float(str(method.update.to_json()["learning_rate"])), 0.25 * 4)


def test_it_is_for_the_records_of_the_configuration_and_says_what_it_was_chosen_on(tmp_path: Path) -> None:
    _, read = read_back(tmp_path, 0)
    assert read.data == {"name": "digits"}
    assert read.privacy["settings_chosen_on"] == "public"
    assert "simulated_batch_size" not in read.privacy
    assert (tmp_path / "winner.toml").read_text().startswith("# The best of\n# two trials\n")


def test_statements_of_the_configuration_stay_and_say_it_too() -> None:
    stated = {"settings_chosen_on": "fixed", "records": 1464}
    said = CONFIGURATION.with_words(privacy={"stated": stated})
    search = Search(configuration=said, space=SEARCH.space, data=SEARCH.data)
    privacy = winning(search, parameters(0), settings_chosen_on="public").privacy
    assert privacy["stated"] == {"settings_chosen_on": "public", "records": 1464}
    assert "settings_chosen_on" not in privacy
