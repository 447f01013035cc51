"""``lehr plan``, ``lehr account`` and ``lehr simulate``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting import ACCOUNTANTS
from lehr.files import strict_json
from lehr.planning import simulation
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from tests.cli.conftest import Run, RunJson

MNIST = ("plan", "--delta", "1e-5", "--records", "60000", "--expected-batch-size", "512")
SMALL = ("plan", "--delta", "1e-5", "--records", "1000", "--expected-batch-size", "500", "--steps", "20")


def test_fourth_number_is_computed_from_three(lehr_json: RunJson) -> None:
    answer = lehr_json(*MNIST, "--noise-multiplier", "1.23", "--epsilon", "3")
    assert answer["plan"]["steps"] == pytest.approx(7245, abs=10)
    assert 2.99 < answer["epsilon"] <= 3
    assert answer["accountant"] == "pld"
    assert answer["claim"]["kind"] == "proven"


def test_plan_is_shown_with_its_accountants_and_the_curve(lehr: Run, lehr_json: RunJson) -> None:
    arguments = (*MNIST, "--noise-multiplier", "1.23", "--steps", "4698")
    shown = lehr(*arguments).stdout
    for words in ("2.366", "1.23", "512 of 60,000 records", "4,698", "counted by", "pld", "ε against steps", "4,000"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    passed_over = lehr_json(*arguments)["passed_over"]
    assert passed_over
    assert all(f"not {other['accountant']}" in shown for other in passed_over)
    assert "against steps" not in lehr(*arguments, "--no-chart").stdout


def test_page_and_plan_are_written(lehr_json: RunJson, lehr: Run, tmp_path: Path) -> None:
    arguments = (*MNIST, "--noise-multiplier", "1.23", "--steps", "100", "--save", "plan.json")
    answer = lehr_json(*arguments, "--html", "plan.html")
    assert strict_json.read(tmp_path / "plan.json", Plan.from_json).to_json() == answer["plan"]
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (answer["html"], answer["save"]) == ("plan.html", "plan.json")
    assert "only with --overwrite" in lehr(*arguments, code=3).stderr
    lehr(*arguments, "--overwrite", "--no-chart")


def test_noise_and_delta_are_shown_with_all_digits(lehr: Run, lehr_json: RunJson) -> None:
    numbers = ("--delta", "1.0000004e-5", "--noise-multiplier", "1.1", "--steps", "9")
    shown = lehr("plan", "--records", "60000", "--expected-batch-size", "512", "--no-chart", *numbers).stdout
    assert "1.0000004e-05" in shown
    assert "noise multiplier       1.1\n" in "\n".join(map(str.rstrip, shown.splitlines()))
    replaced = lehr_json(*MNIST, "--noise-multiplier", "2", "--steps", "50", "--adjacency", "replace-one")
    assert replaced["plan"]["adjacency"] == "replace-one"
    zeroed = lehr_json(*MNIST, "--noise-multiplier", "2", "--steps", "50", "--adjacency", "zero-out")
    assert (zeroed["plan"]["adjacency"], zeroed["accountant"]) == ("zero-out", "pld")


def test_truncated_batches_are_planned_and_counted(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    numbers = ("--noise-multiplier", "1.1", "--steps", "1000")
    truncated = (*MNIST, *numbers, "--largest-batch", "600")
    answer = lehr_json(*truncated, "--save", "plan.json")
    assert answer["plan"]["largest_batch"] == 600
    assert answer["epsilon"] == pytest.approx(1.324, abs=1e-3)
    assert answer["epsilon"] > lehr_json(*MNIST, *numbers)["epsilon"]
    counted = lehr_json("account", *MNIST[1:], *numbers, "--largest-batch", "600")
    assert counted == lehr_json("account", "--plan", "plan.json")
    assert counted["epsilon"] == answer["epsilon"]
    assert "at most 600 in a batch" in lehr(*truncated, "--no-chart").stdout


def test_total_amount_of_noise_is_shown(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    shown = lehr(*SMALL, "--noise-multiplier", "3", "--tan").stdout
    for words in ("an estimate, not a guarantee", "privacy wall", "Other batches", "your plan", "ε against the noise"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    answer = lehr_json(*SMALL, "--noise-multiplier", "3", "--tan", "--html", "plan.html")
    standing = answer["tan"]["standing"]
    assert standing["epsilon"] == answer["epsilon"]
    assert standing["epsilon_tan"]["standing"] == "an estimate, not a guarantee"
    assert all(row["epsilon"] <= answer["epsilon"] for row in answer["tan"]["other_batches"])
    assert "constant-eta" in (tmp_path / "plan.html").read_text(encoding="utf-8")


NOISE = ("account", "--noise-multiplier", "1.23", "--delta", "1e-5")
RUN = (*NOISE, "--expected-batch-size", "512", "--records", "60000", "--steps", "4698")


def test_every_accountant_answers_with_the_reference_values(lehr: Run, lehr_json: RunJson) -> None:
    answer = lehr_json(*RUN)
    answers = {one["accountant"]: one for one in answer["answers"]}
    assert list(answers) == list(ACCOUNTANTS)
    assert answers["rdp-mironov17"]["epsilon"] == pytest.approx(2.9998, abs=5e-4)
    assert answers["rdp-balle20"]["epsilon"] == pytest.approx(2.584, abs=5e-3)
    assert answers["pld"]["epsilon"] == pytest.approx(2.366, abs=1e-3)
    estimates = [name for name, one in answers.items() if one["is_estimate"]]
    assert estimates == ["gdp", "tan"]
    assert (answer["accountant"], answer["epsilon"]) == ("pld", answers["pld"]["epsilon"])
    lines = lehr(*RUN).stdout.splitlines()
    assert [line.split()[0] for line in lines if "the smallest proven bound" in line] == ["pld"]
    assert [line.split()[0] for line in lines if "an estimate, not a guarantee" in line] == estimates


def test_run_can_be_described_in_three_ways(lehr_json: RunJson, plan_file: str) -> None:
    noise = ("account", "--noise-multiplier", "2", "--steps", "1000", "--delta", "1e-5")
    by_batch = lehr_json(*noise, "--expected-batch-size", "512", "--records", "60000")
    assert by_batch == lehr_json(*noise, "--sampling-probability", str(512 / 60_000))
    assert by_batch == lehr_json("account", "--plan", plan_file)


def test_accountant_that_cannot_count_says_why(lehr: Run, lehr_json: RunJson) -> None:
    refused = [answer for answer in lehr_json(*RUN, "--adjacency", "replace-one")["answers"] if not answer["epsilon"]]
    assert refused
    assert all(answer["reason"] for answer in refused)
    silent = ("account", "--noise-multiplier", "0", "--sampling-probability", "0.1", "--steps", "3", "--delta", "1e-5")
    assert lehr_json(*silent)["epsilon"] == "infinity"
    assert "infinity" in lehr(*silent).stdout


def test_simulated_plan_promises_nothing(lehr: Run, tmp_path: Path) -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=256, records=1464, steps=4, delta=1e-4)
    strict_json.write(tmp_path / "cheap.json", simulate(plan, expected_batch_size=32).to_json())
    assert "This plan guarantees nothing" in lehr("account", "--plan", "cheap.json").stdout


CONFIG = """
[data]
name = "digits"
declared = "public"
[privacy]
noise_multiplier = 2
expected_batch_size = 64
delta = 1e-4
steps = 2
"""
CHEAP = ("--no-compile", "--device", "cpu")


def test_prediction_is_made_shown_and_compared_with_the_run(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    (tmp_path / "dear.toml").write_text(CONFIG)
    first = lehr_json("simulate", "dear.toml", "--batches", "8,16,32", "--seeds", "1", *CHEAP)
    prediction = strict_json.read(tmp_path / "dear-simulated" / "prediction.json", simulation.prediction_from_json)
    assert first["follows"] == prediction.to_json()["follows"]
    assert first["left_out"] == []
    shown = lehr("simulate", "dear.toml", "--batches", "16,32", "--seeds", "2", *CHEAP)
    assert "4 simulated runs that protect nobody" in shown.stdout
    assert "not asked for: batch-8-seed-0." in shown.stdout
    assert "run 1 of 4, batches of 16, seed 0: done before" in shown.stderr
    assert "run 4 of 4, batches of 32, seed 1: 2 steps planned" in shown.stderr
    lehr("train", "dear.toml", "--run", "dear", "--quiet", *CHEAP)
    assert "was predicted (95 %: " in lehr("report", "dear", "--prediction", "dear-simulated/prediction.json").stdout
    assert "Predicted and reached" in (tmp_path / "dear" / "report.html").read_text()
