"""Options have the names that PyTorch users know, in ``fit`` and in ``lehr train``; other names get a suggestion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lehr
from lehr.cli.main import app
from lehr.config import ALIASES, SUGGESTIONS, options
from lehr.run.folder import read_config
from lehr.schedules import Cosine, LinearDecay, from_json
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan
from tests.training.tiny import fit_tiny

OWN = {"loss_fn", "test", "data", "callbacks"}  # of fit alone


def train(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["train", *arguments])


def test_adamw_with_a_cosine_needs_no_import(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path, lr=0.01, optimizer="AdamW", scheduler="cosine", weight_decay=0.1, max_grad_norm=1.0)
    method = read_config(run.directory)["method"]
    update = method["update"]
    assert (update["optimizer"], update["learning_rate"], update["arguments"]) == ("adamw", 0.01, {"weight_decay": 0.1})
    assert from_json(update["schedule"]) == Cosine(total_steps=5)
    assert method["clipping"]["clip_norm"] == 1.0


def test_weight_decay_and_schedule_keep_the_default_optimizer(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path, learning_rate=0.5, weight_decay=0.1, schedule="linear")
    update = read_config(run.directory)["method"]["update"]
    assert update["arguments"] == {"momentum": 0.9, "weight_decay": 0.1}
    assert from_json(update["schedule"]) == LinearDecay(steps=5)


@pytest.mark.parametrize("name", ["epochs", "max_epochs", "n_epochs", "num_epochs"])
def test_epochs_have_many_names(name: str) -> None:
    config = lehr.RunConfig().with_options(**{name: 3}, dataset="digits", epsilon=8, schedule="cosine", batch_size=366)
    method, plan = method_and_plan(config)
    assert plan.steps == 12
    assert method.update.schedule == Cosine(total_steps=12)


def test_the_command_line_takes_the_same_names(tmp_path: Path) -> None:
    words = "--dataset digits --target-epsilon 8 --target-delta 1e-4 --max-epochs 1 --batch-size 732 --lr 0.01 "
    words += "--optimizer adam --scheduler cosine --max-grad-norm 1 --no-compile -q"
    result = train(*words.split(), "--run", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert read_config(tmp_path / "run")["method"]["update"]["schedule"]["total_steps"] == 2


@pytest.mark.parametrize("name", SUGGESTIONS)
def test_names_of_other_libraries_are_translated_by_the_error(name: str) -> None:
    right = SUGGESTIONS[name]
    assert ALIASES.get(right, right) in {*options(), *OWN}
    with pytest.raises(lehr.InvalidValue, match=f"did you mean {right}\\?"):
        fit("small_cnn", "digits", **{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given, right", [("output-dir", "--run"), ("l2-norm-clip", "--clip-norm"), ("learnin-rate", "--learning-rate")]
)
def test_the_command_line_suggests_the_option(given: str, right: str) -> None:
    result = train(f"--{given}", "1")
    assert result.exit_code == 2
    assert f"(Possible options: {right})" in result.stderr


@pytest.mark.parametrize(
    "wrong, name",
    [
        ({"schedule": "cosin"}, "schedule"),
        ({"optimizer": "adam"}, "learning_rate"),
        ({"weight_decay": 0.1}, "learning_rate"),
        ({"lr": 0.1, "learning_rate": 0.1}, "learning_rate"),
        ({"lr": 0.1, "optimizer": "adamm"}, "optimizer"),
    ],
)
def test_an_error_has_the_name_of_the_option(tmp_path: Path, wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(lehr.InvalidValue) as caught:
        fit_tiny(tmp_path, **wrong)
    assert caught.value.name == name
