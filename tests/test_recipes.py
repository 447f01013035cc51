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
from lehr.recipes import AUTO, RECIPES, Task, choose, with_recipe
from lehr.run.folder import read_config

MNIST: dict[str, Any] = {"shape": (1, 28, 28), "records": 60_000}


def images(count: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 8, 8, generator=made), torch.arange(count) % 3


# For each recipe, records that it suits.
SUITED: dict[str, dict[str, Any]] = {
    "own-network": {"has_own_network": True},
    "resnet9": {"shape": (3, 32, 32), "is_on_gpu": True},
    "scattering-linear": {},
    "scattering-cnn": {},
    "tabular": {"shape": (20,)},
}


def made_for(task: dict[str, Any], **options: Any) -> RunConfig:
    return with_recipe(RunConfig().with_options(**options), **{**MNIST, **task})[0]


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_give_a_whole_configuration(name: str) -> None:
    made, less = (made_for(SUITED[name], recipe=name, epsilon=epsilon) for epsilon in (3, 1))
    assert made.training.recipe == name
    assert (made.model.network is None) == (name == "own-network")
    ways = [(each.method.learning_rate or 0) * (each.privacy.steps or 0) for each in (less, made)]
    assert 0 < ways[0] < ways[1]
    assert made.privacy.expected_batch_size


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "scattering-cnn"])
def test_auto_chooses_by_public_facts(name: str) -> None:
    found, why = with_recipe(RunConfig().with_options(recipe=AUTO, epsilon=3), **{**MNIST, **SUITED[name]})
    assert found.training.recipe == name
    assert why


@pytest.mark.parametrize(
    "facts, name",
    [
        ({"is_on_gpu": False}, "scattering-linear"),  # a CPU would need hours
        ({"epsilon": 0.5}, "scattering-linear"),  # too much noise for a deep network
        ({"epsilon": 0.5, "has_prior": True}, "resnet9"),
        ({"shape": (3, 128, 128)}, "resnet9"),
    ],
)
def test_auto_on_photographs(facts: dict[str, Any], name: str) -> None:
    usual: dict[str, Any] = {"shape": (3, 32, 32), "records": 50_000, "epsilon": 3.0, "is_on_gpu": True}
    assert choose(Task(**{**usual, **facts}))[0] == name


def test_a_prior_trains_the_head_first() -> None:
    facts = {**SUITED["resnet9"], "has_prior": True}
    made = made_for(facts, recipe="resnet9", epsilon=3)
    assert [phase.get("trained") for phase in made.training.phases] == [["head"], None]
    assert made.model["shift"] == 1


def test_given_values_stay() -> None:
    made = made_for({}, recipe=AUTO, epsilon=3, steps=7, learning_rate=0.3, network="small_cnn")
    assert (made.privacy.steps, made.method.learning_rate, dict(made.model)) == (7, 0.3, {"network": "small_cnn"})
    assert made.method.clip_norm == 0.1


@pytest.mark.parametrize("longer", [{"steps": 8000}, {"epochs": 8000 * 8192 / 60_000}])
def test_a_longer_run_has_a_lower_rate(longer: dict[str, Any]) -> None:
    usual, long, short = (made_for({}, recipe=AUTO, epsilon=3, **more) for more in ({}, longer, {"steps": 10}))
    assert usual.privacy.steps == 800
    assert long.method.learning_rate == pytest.approx((usual.method.learning_rate or 0) / 10, rel=0.01)
    assert short.method.learning_rate == usual.method.learning_rate


def test_epochs_replace_the_steps() -> None:
    made = made_for({}, recipe=AUTO, epsilon=3, epochs=2)
    assert (made.privacy.epochs, made.privacy.steps) == (2, None)


@pytest.mark.parametrize(
    "options, task, name",
    [
        ({"recipe": AUTO}, {}, "epsilon"),
        ({"recipe": "best", "epsilon": 3}, {}, "recipe"),
        ({"recipe": AUTO, "epsilon": 3}, {"shape": (20, 3)}, "recipe"),
        ({"recipe": "scattering-cnn", "epsilon": 3}, {"shape": (3, 8, 16)}, "recipe"),
        ({"recipe": "own-network", "epsilon": 3}, {}, "recipe"),
    ],
)
def test_unfit_recipes_are_refused(options: dict[str, Any], task: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        made_for(task, **options)
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
    assert read_config(run.directory)["training"]["recipe"] == "own-network"
    assert read_config(run.directory)["model"].get("network") is None
