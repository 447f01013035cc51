"""A run of a simulated plan is labelled everywhere that it is shown, and never promises anything."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lehr import data, fit
from lehr.attacks import subjects
from lehr.certificates.release import release
from lehr.certificates.run_reading import read_run
from lehr.config import RunConfig
from lehr.errors import InvalidValue
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports import run_page
from lehr.reports.progress import Screen, TrainingProgress
from lehr.training.ending import Run
from lehr.training.prepare import config_of_run, method_and_plan

REFERENCE = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)
CHEAP = simulate(REFERENCE, expected_batch_size=32)
LABEL = "it is a simulation of batches of 256 at noise multiplier 2 by batches of 32 at 0.25, and its own ε is"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return fit(
        "small_cnn",
        data.load("digits"),
        plan=CHEAP,
        declared="public",
        settings_chosen_on="fixed",
        directory=tmp_path_factory.mktemp("simulated") / "run",
        quiet=True,
        compiled=False,
    )


def test_it_has_no_certificate_though_how_settings_were_chosen_is_stated(simulated: Run) -> None:
    assert simulated.certificate is None
    assert not (simulated.directory / "certificate.json").exists()


def test_it_says_what_it_is_and_the_epsilon_that_it_would_have(simulated: Run) -> None:
    assert simulated.promises_nothing is not None
    assert simulated.promises_nothing.startswith(LABEL)
    assert simulated.proven.epsilon > 10 * REFERENCE.bound().epsilon


def test_the_page_says_it(simulated: Run) -> None:
    record = read_run(simulated.directory)
    assert not record.is_private
    page = run_page.render(record)
    assert "No privacy: it is a simulation of batches of 256" in page


def test_it_is_released_only_where_no_privacy_is_asked_for_and_the_card_says_it(simulated: Run, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="it is a simulation"):
        release(simulated.directory, tmp_path / "model", settings_chosen_on="fixed")
    release(simulated.directory, tmp_path / "model", allow_no_privacy=True)
    assert "No privacy guarantee: it is a simulation" in (tmp_path / "model" / "README.md").read_text()


def test_the_configuration_of_the_run_has_the_plan_that_it_stands_for(simulated: Run) -> None:
    config = json.loads((simulated.directory / "config.json").read_text())
    assert Plan.from_json(config["plan"]).simulates == REFERENCE
    assert config["data"]["declared"] == "public"


def test_there_is_nothing_to_attack(simulated: Run) -> None:
    with pytest.raises(InvalidValue, match="claims something"):
        subjects.subject_of_run(simulated.directory)


def test_progress_says_it(tmp_path: Path) -> None:
    lines = io.StringIO()
    fit(
        "small_cnn",
        data.load("digits"),
        plan=CHEAP,
        declared="synthetic",
        directory=tmp_path / "run",
        quiet=True,
        compiled=False,
        callbacks=[TrainingProgress(Screen(lines))],
    )
    assert f"no privacy: {LABEL}" in lines.getvalue()
    assert "proven ε =" not in lines.getvalue()


def test_private_records_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="declared must be public or synthetic"):
        fit("small_cnn", data.load("digits"), plan=CHEAP, directory=tmp_path / "run", quiet=True, compiled=False)
    assert not (tmp_path / "run").exists()


def test_no_budget_pays_for_it(tmp_path: Path) -> None:
    Budget.create(tmp_path / "digits.budget", dataset="digits", epsilon=8.0, delta=1e-4).close()
    with pytest.raises(InvalidValue, match="budget"):
        fit(
            "small_cnn",
            data.load("digits"),
            plan=CHEAP,
            declared="public",
            budget=tmp_path / "digits.budget",
            directory=tmp_path / "run",
            compiled=False,
        )


def test_records_declared_public_are_promised_nothing_either(tmp_path: Path) -> None:
    run = fit(
        "small_cnn",
        data.load("digits"),
        plan=REFERENCE,
        declared="public",
        settings_chosen_on="fixed",
        directory=tmp_path / "run",
        quiet=True,
        compiled=False,
    )
    assert run.certificate is None
    assert run.promises_nothing == "the training records were declared public"
    assert read_run(run.directory).no_privacy_because == run.promises_nothing


def test_a_configuration_can_ask_for_it_and_a_run_of_it_can_be_described_again(tmp_path: Path) -> None:
    asked = RunConfig.of(
        data={"name": "digits", "declared": "public"},
        privacy={
            "epsilon": 8.0,
            "delta": 1e-4,
            "steps": 4,
            "expected_batch_size": 256,
            "simulated_batch_size": 32,
            "settings_chosen_on": "public",
        },
    )
    _, plan = method_and_plan(asked)
    run = fit(config=asked, directory=tmp_path / "run", quiet=True, compiled=False)
    assert run.plan == plan
    assert plan.simulates is not None
    assert plan.simulates.bound().epsilon <= 8
    again = config_of_run(tmp_path / "run")
    assert method_and_plan(again)[1] == plan
    assert again.data["declared"] == "public"
