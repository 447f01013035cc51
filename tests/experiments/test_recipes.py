"""The measurements behind the tables of recipes, on small data."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import recipes
from experiments.experiment import Size


def test_a_table_of_scikit_learn_is_learnt() -> None:
    found = recipes.rows(device="cpu", data_dir=None, data="wine", kind="auto", seed=0)
    assert found["accuracy"] > 0.5
    assert found["epsilon_proven"] <= recipes.EPSILON


@pytest.mark.parametrize(
    "changed",
    [{}, {"features": "groups"}, {"sharpness": 0.1}, {"optimizer": "low-pass"}, {"optimizer": "adam", "rate": 0.005}],
)
def test_levers_learn(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "LEVER_STEPS", 50)
    assert recipes.lever(device="cpu", data_dir=None, data="digits", seed=0, **changed)["accuracy"] > 0.3


def test_every_setting_has_a_recipe_and_a_reference_for_each_epsilon() -> None:
    for setting in recipes.SETTINGS:
        for epsilon in recipes.EPSILONS:
            runs = setting.runs(epsilon, Size())
            assert len(runs) == setting.seeds == len({run.seed for run in runs})
            assert all(run.config.privacy.epsilon == epsilon for run in runs)
