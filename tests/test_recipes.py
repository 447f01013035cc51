from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import lehr
from lehr.certificates import release, released_model
from lehr.config import RunConfig
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.recipes import AUTO, RECIPES, with_recipe
from lehr.run.folder import read_config

MNIST: dict[str, Any] = {"shape": (1, 28, 28), "records": 60_000}


def images(count: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 8, 8, generator=made), torch.arange(count) % 3


@pytest.mark.parametrize("name", [AUTO, *RECIPES])
def test_recipes_give_a_whole_configuration(name: str) -> None:
    made = with_recipe(RunConfig().with_options(recipe=name, epsilon=3), **MNIST)
    assert made.training.recipe in RECIPES
    assert made.model.network
    assert made.privacy.steps
    assert made.privacy.expected_batch_size
    less = with_recipe(RunConfig().with_options(recipe=name, epsilon=1), **MNIST)
    assert less.method.learning_rate is not None
    assert less.method.learning_rate * less.privacy.steps < made.method.learning_rate * made.privacy.steps  # type: ignore[operator]


def test_given_values_stay() -> None:
    given = RunConfig().with_options(recipe=AUTO, epsilon=3, steps=7, learning_rate=0.3, network="small_cnn")
    made = with_recipe(given, **MNIST)
    assert (made.privacy.steps, made.method.learning_rate, dict(made.model)) == (7, 0.3, {"network": "small_cnn"})
    assert made.method.clip_norm == 0.1


def test_epochs_replace_the_steps() -> None:
    made = with_recipe(RunConfig().with_options(recipe=AUTO, epsilon=3, epochs=2), **MNIST)
    assert (made.privacy.epochs, made.privacy.steps) == (2, None)


@pytest.mark.parametrize(
    "options, task, name",
    [
        ({"recipe": AUTO}, {}, "epsilon"),
        ({"recipe": "best", "epsilon": 3}, {}, "recipe"),
        ({"recipe": AUTO, "epsilon": 3}, {"shape": (20,)}, "recipe"),
        ({"recipe": "scattering-cnn", "epsilon": 3}, {"shape": (3, 8, 16)}, "recipe"),
    ],
)
def test_unfit_recipes_are_refused(options: dict[str, Any], task: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        with_recipe(RunConfig().with_options(**options), **{**MNIST, **task})
    assert error.value.name == name


def test_a_model_of_a_recipe_is_trained_resumed_released_and_used(tmp_path: Path) -> None:
    inputs, targets = images()
    options: dict[str, Any] = {
        "records": 60,
        "num_classes": 3,
        "test": images(30, seed=1),
        "epsilon": 3,
        "delta": 1e-3,
        "steps": 4,
        "recipe": AUTO,
        "settings_chosen_on": "fixed",
        "directory": tmp_path / "run",
        "quiet": True,
        "compiled": False,
    }
    run = lehr.fit(None, (inputs, targets), **options)
    config = read_config(run.directory)
    assert config["data"]["shape"] == [1, 8, 8]
    assert config["training"]["recipe"] == "scattering-linear"
    assert run.certificate is not None
    assert any("scattering" in each for each in run.certificate.stated.treated_as_public)
    again = lehr.fit(None, (inputs, targets), **{**options, "resume": True})
    assert again.accuracy == run.accuracy
    release.release(run.directory, to=tmp_path / "model")
    scores = released_model.evaluate(tmp_path / "model", InMemory(*images(30, seed=1)))
    assert scores.accuracy == pytest.approx(run.accuracy)


def test_a_model_of_ones_own_keeps_its_layers(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 3))
    numbers: dict[str, Any] = {"records": 60, "num_classes": 3, "epsilon": 3, "delta": 1e-3, "steps": 2}
    run = lehr.fit(model, images(), **numbers, recipe=AUTO, directory=tmp_path / "run", quiet=True, compiled=False)
    assert run.model is model
    assert read_config(run.directory)["model"].get("network") is None
