from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from lehr.accounting import ACCOUNTANTS
from lehr.files import json_file
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]
NOISE = ("account", "--noise-multiplier", "1.23", "--delta", "1e-5")
MNIST = (*NOISE, "--expected-batch-size", "512", "--records", "60000", "--steps", "4698")


def test_every_accountant_answers_with_the_reference_values(lehr_json: RunJson) -> None:
    answers = {answer["accountant"]: answer for answer in lehr_json(*MNIST)["answers"]}
    assert list(answers) == list(ACCOUNTANTS)
    assert answers["rdp-mironov17"]["epsilon"] == pytest.approx(2.9998, abs=5e-4)
    assert answers["rdp-balle20"]["epsilon"] == pytest.approx(2.584, abs=5e-3)
    assert answers["pld"]["epsilon"] == pytest.approx(2.366, abs=1e-3)
    assert [name for name, answer in answers.items() if answer["is_estimate"]] == ["gdp", "tan"]


def test_the_smallest_proven_bound_is_named(lehr: Run, lehr_json: RunJson) -> None:
    answer = lehr_json(*MNIST)
    proven = [other["epsilon"] for other in answer["answers"] if not other["is_estimate"]]
    assert (answer["accountant"], answer["epsilon"]) == ("pld", min(proven))
    lines = lehr(*MNIST).stdout.splitlines()
    assert [line.split()[0] for line in lines if "the smallest proven bound" in line] == ["pld"]


def test_estimates_are_marked_for_people(lehr: Run) -> None:
    lines = lehr(*MNIST).stdout.splitlines()
    assert [line.split()[0] for line in lines if "an estimate, not a guarantee" in line] == ["gdp", "tan"]


def test_a_probability_says_the_same_as_batch_size_and_records(lehr_json: RunJson) -> None:
    by_probability = lehr_json(*NOISE, "--sampling-probability", str(512 / 60_000), "--steps", "4698")
    assert by_probability == lehr_json(*MNIST)


def test_a_plan_file_says_the_same_as_its_options(lehr_json: RunJson, plan_file: str) -> None:
    run = ("--expected-batch-size", "512", "--records", "60000", "--steps", "1000", "--delta", "1e-5")
    assert lehr_json("account", "--plan", plan_file) == lehr_json("account", "--noise-multiplier", "2", *run)


@pytest.mark.parametrize("surplus", [("--steps", "3"), ("--delta", "1e-6"), ("--adjacency", "replace-one")])
def test_nothing_is_said_beside_a_plan(lehr: Run, plan_file: str, surplus: tuple[str, ...]) -> None:
    assert "left out beside plan" in lehr("account", "--plan", plan_file, *surplus, code=2).stderr


def test_an_accountant_that_cannot_count_says_why(lehr: Run, lehr_json: RunJson) -> None:
    run = (*MNIST, "--adjacency", "replace-one")
    refused = [answer for answer in lehr_json(*run)["answers"] if answer["epsilon"] is None]
    assert refused
    assert all(answer["reason"] for answer in refused)
    assert "–" in lehr(*run).stdout


def test_no_noise_is_infinity_in_a_word(lehr: Run, lehr_json: RunJson) -> None:
    run = ("account", "--noise-multiplier", "0", "--sampling-probability", "0.1", "--steps", "3", "--delta", "1e-5")
    assert lehr_json(*run)["epsilon"] == "infinity"
    assert "infinity" in lehr(*run).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--steps", "0", "--sampling-probability", "0.1"),
        ("--steps", "3", "--sampling-probability", "1.5"),
        ("--steps", "3", "--sampling-probability", "0.1", "--records", "10"),
        ("--steps", "3", "--expected-batch-size", "0", "--records", "10"),
        ("--steps", "3", "--expected-batch-size", "5", "--records", "0"),
        ("--sampling-probability", "0.1"),
        ("--steps", "3"),
    ],
)
def test_a_run_that_cannot_be_is_refused(lehr: Run, arguments: tuple[str, ...]) -> None:
    assert lehr(*NOISE, *arguments, code=2).stderr.startswith("lehr: ")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"noise_multiplier": NaN}', "\x00"])
def test_a_file_that_is_no_plan_is_named(lehr: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.json").write_text(text)
    assert "broken.json" in lehr("account", "--plan", "broken.json", code=3).stderr
    assert "none.json" in lehr("account", "--plan", "none.json", code=3).stderr


def test_a_simulated_plan_is_counted_and_said_to_promise_nothing(lehr: Run, tmp_path: Path) -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)
    json_file.write(tmp_path / "cheap.json", simulate(plan, expected_batch_size=32).to_json())
    assert "Nothing is promised to anybody" in lehr("account", "--plan", "cheap.json").stdout
