"""Plan a run: ε and the number of records in, batch, noise and steps out; one rule for δ; one set of defaults."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import lehr
from lehr.cli.main import app
from lehr.config import CLIP_NORM, LEARNING_RATE, MOMENTUM, RunConfig
from lehr.integrations.external_loop import PrivacyConfig
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.bands import inverse_band_coefficients, relative_error
from lehr.recipes import RECIPES, Task
from tests.training.tiny import PRIVATE, linear

ASKED = ("plan", "--epsilon", "3", "--delta", "1e-5", "--records", "50000")


def plan(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_epsilon_and_records_are_enough() -> None:
    answer = plan("--epsilon", "3", "--records", "50000")
    made, recommended = answer["plan"], answer["recommendation"]
    assert 2.99 < answer["epsilon"] <= 3
    assert made["delta"] == 1e-5
    tables = RECIPES["own-network"].build(Task(shape=(3,), records=50_000, epsilon=3, has_own_network=True))
    assert (made["expected_batch_size"], made["steps"]) == (
        tables["privacy"]["expected_batch_size"],
        tables["privacy"]["steps"],
    )
    assert recommended["learning_rate"] == tables["method"]["learning_rate"]
    assert {"batch", "steps", "noise", "bands"} == recommended["reasons"].keys()
    assert made["bands"] == 1
    assert recommended["reasons"]["bands"].startswith("none")
    first, *others = recommended["alternatives"]
    assert (first["name"], first["signal"], first["compute"]) == ("recommended", 1, 1)
    assert {other["compute"] < 1 for other in others} == {True, False}


def test_the_terminal_shows_reasons_alternatives_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*ASKED]).stdout
    for words in ("Recommended plan", "Why", "Alternatives", "twice the batch", "lehr train --epsilon 3 --delta 1e-05"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_correlated_noise_is_recommended_where_it_clearly_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (plan("--epsilon", "8", "--records", "60000", "--steps", steps) for steps in ("50", "500"))
    assert (few["plan"]["bands"], few["plan"]["correlation"]) == (2, "banded-inverse")
    assert few["epsilon"] <= 8
    first, second, *_ = few["recommendation"]["alternatives"]
    assert (first["name"], first["signal"], second["name"]) == ("recommended", 1, "independent noise")
    column = inverse_band_coefficients(bands=2, steps=50, num_groups=7, momentum=MOMENTUM)
    noise = first["noise_multiplier"] * relative_error(np.array([*column, *[0.0] * 48]), momentum=MOMENTUM)
    assert second["signal"] == pytest.approx(noise / second["noise_multiplier"])
    assert second["signal"] <= 0.9
    assert many["plan"]["bands"] == 1
    monkeypatch.setenv("COLUMNS", "200")
    shown = CliRunner().invoke(app, ["plan", "--epsilon", "8", "--records", "60000", "--steps", "50"]).stdout
    assert "--bands 2 --correlation banded-inverse" in shown


@pytest.mark.parametrize(
    "given, kept",
    [
        (("--steps", "100"), {"steps": 100}),
        (("--noise-multiplier", "4"), {"noise_multiplier": 4.0}),
        (("--epochs", "10", "--batch-size", "100"), {"steps": 100, "expected_batch_size": 100.0}),
    ],
)
def test_what_is_given_stays(given: tuple[str, ...], kept: dict[str, float]) -> None:
    answer = plan("--epsilon", "8", "--records", "1000", *given)
    assert answer["plan"].items() >= kept.items()
    assert answer["epsilon"] <= 8


@pytest.mark.parametrize("given", [(), ("--epochs", "10"), ("--steps", "5", "--batch-size", "10")])
def test_without_epsilon_the_error_names_it(given: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, ["plan", "--records", "1000", *given])
    assert result.exit_code == 2
    assert result.stderr.startswith("lehr: epsilon must be given")


def test_recommended_plan_in_python() -> None:
    found = lehr.recommend_plan(epsilon=1, records=20, adjacency=lehr.Adjacency.REPLACE_ONE, steps=5)
    assert found.plan.steps == 5
    assert found.plan.bound().epsilon <= 1
    with pytest.raises(lehr.InvalidValue, match="make_plan"):
        lehr.recommend_plan(epsilon=1, records=100, steps=20, noise_multiplier=3)


def test_delta_has_one_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers: dict[str, Any] = {"noise_multiplier": 2.0, "steps": 1, "expected_batch_size": 10}
    assert lehr.make_plan(records=60, **numbers).delta == 0.01
    assert plan("--records", "60", "--epsilon", "3")["plan"]["delta"] == 0.01
    assert PrivacyConfig(records=60, noise_multiplier=1.0).plan(steps=2).delta == 0.01
    run = lehr.fit(linear(), PRIVATE, records=60, num_classes=3, directory=tmp_path, compiled=False, **numbers)
    assert run.plan.delta == 0.01
    assert "at δ = 0.01" in capsys.readouterr().err
    arguments = ["account", "--noise-multiplier", "2", "--steps", "1", "--batch-size", "10", "--records", "60"]
    assert json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["delta"] == 0.01


def test_settings_have_one_default() -> None:
    sklearn = pytest.importorskip("lehr.integrations.sklearn")
    own = inspect.signature(dpsgd).parameters
    classifier = sklearn.LehrClassifier()
    for name, value in (("learning_rate", LEARNING_RATE), ("clip_norm", CLIP_NORM), ("momentum", MOMENTUM)):
        assert own[name].default == getattr(classifier, name) == value
    assert PrivacyConfig(records=60, noise_multiplier=1.0).clip_norm == CLIP_NORM
    assert RunConfig().method.clip_norm is None  # each method decides
