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


def test_three_are_given_and_the_fourth_is_found(lehr_json: RunJson) -> None:
    answer = lehr_json(*MNIST, "--noise-multiplier", "1.23", "--epsilon", "3")
    assert answer["plan"]["steps"] == pytest.approx(7245, abs=10)
    assert 2.99 < answer["epsilon"] <= 3
    assert answer["accountant"] == "pld"
    assert answer["claim"]["kind"] == "proven"


def test_a_person_sees_the_plan_who_counted_and_the_curve(lehr: Run) -> None:
    shown = lehr(*MNIST, "--noise-multiplier", "1.23", "--steps", "4698").stdout
    for words in ("2.366", "1.23", "512 of 60,000 records", "4,698", "counted by", "pld", "ε against steps", "4,000"):
        assert words in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_why_other_accountants_were_passed_over_is_told(lehr: Run, lehr_json: RunJson) -> None:
    arguments = (*MNIST, "--noise-multiplier", "1.23", "--steps", "100")
    passed_over = lehr_json(*arguments)["passed_over"]
    shown = lehr(*arguments, "--no-chart").stdout
    assert passed_over
    assert "against steps" not in shown
    for other in passed_over:
        assert f"not {other['accountant']}" in shown


def test_page_and_plan_are_written(lehr_json: RunJson, tmp_path: Path) -> None:
    files = ("--html", "plan.html", "--save", "plan.json")
    answer = lehr_json(*MNIST, "--noise-multiplier", "1.23", "--steps", "100", *files)
    assert strict_json.read(tmp_path / "plan.json", Plan.from_json).to_json() == answer["plan"]
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert (answer["html"], answer["save"]) == ("plan.html", "plan.json")


@pytest.mark.parametrize(
    "arguments, code",
    [
        (("--epsilon", "3"), 2),
        (("--epsilon", "3", "--steps", "9", "--noise-multiplier", "1"), 2),
        (("--epsilon", "nan", "--steps", "9"), 2),
        (("--noise-multiplier", "-1", "--steps", "9"), 2),
        (("--epsilon", "1e-9", "--noise-multiplier", "0.5"), 1),
        (("--noise-multiplier", "1", "--steps", "9", "--save", "nowhere/plan.json"), 3),
        (("--noise-multiplier", "1", "--steps", "9", "--html", "nowhere/plan.html"), 3),
    ],
)
def test_what_cannot_be_planned_has_its_exit_code(lehr_json: RunJson, arguments: tuple[str, ...], code: int) -> None:
    assert lehr_json(*MNIST, *arguments, code=code)["error"]["exit_code"] == code


def test_replace_one_is_planned_without_replacement(lehr_json: RunJson) -> None:
    arguments = ("--noise-multiplier", "2", "--steps", "50", "--adjacency", "replace-one")
    answer = lehr_json(*MNIST, *arguments)
    assert answer["plan"]["adjacency"] == "replace-one"
    assert answer["epsilon"] > 0


def test_another_file_is_replaced_only_when_asked_and_a_budget_never(lehr: Run, tmp_path: Path) -> None:
    run = (*MNIST, "--noise-multiplier", "1.23", "--steps", "10", "--no-chart")
    (tmp_path / "notes.txt").write_text("mine")
    lehr("budget", "create", "clinic.budget", "--dataset", "clinic", "--epsilon", "3", "--delta", "1e-5")
    for option in ("--save", "--html"):
        assert "only with --overwrite" in lehr(*run, option, "notes.txt", code=3).stderr
        assert "it stays" in lehr(*run, option, "clinic.budget", "--overwrite", code=3).stderr
    assert (tmp_path / "notes.txt").read_text() == "mine"
    lehr("budget", "show", "clinic.budget")
    lehr(*run, "--save", "notes.txt", "--overwrite")
    assert strict_json.read(tmp_path / "notes.txt", Plan.from_json).steps == 10


def test_a_refused_page_leaves_no_plan_behind(lehr: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.html").write_text("mine")
    lehr(*MNIST, "--noise-multiplier", "1.23", "--steps", "9", "--save", "new.json", "--html", "plan.html", code=3)
    assert not (tmp_path / "new.json").exists()


def test_noise_and_delta_are_shown_as_they_are(lehr: Run) -> None:
    numbers = ("--delta", "1.0000004e-5", "--noise-multiplier", "1.1")
    shown = lehr("plan", "--records", "60000", "--expected-batch-size", "512", "--steps", "9", "--no-chart", *numbers)
    assert "1.0000004e-05" in shown.stdout
    assert "noise multiplier       1.1\n" in "\n".join(map(str.rstrip, shown.stdout.splitlines()))


@pytest.mark.parametrize("name", ["loop/plan.json", "loop", "x" * 300])
def test_a_name_that_no_file_can_have_is_one_line(lehr: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert lehr(*MNIST, "--noise-multiplier", "1", "--steps", "9", "--save", name, code=3).stderr.count("\n") == 1


SMALL = ("plan", "--delta", "1e-5", "--records", "1000", "--expected-batch-size", "500", "--steps", "20")


def test_the_total_amount_of_noise_is_told_to_a_person(lehr: Run) -> None:
    shown = lehr(*SMALL, "--noise-multiplier", "3", "--tan").stdout
    for words in (
        "Total amount of noise",
        "an estimate, not a guarantee",
        "privacy wall",
        "Other batches",
        "your plan",
    ):
        assert words in shown
    assert "ε against the noise" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_the_total_amount_of_noise_is_in_the_json_and_on_the_page(lehr_json: RunJson, tmp_path: Path) -> None:
    answer = lehr_json(*SMALL, "--noise-multiplier", "1.1", "--tan", "--html", "plan.html")
    standing = answer["tan"]["standing"]
    assert standing["epsilon"] == answer["epsilon"]
    assert standing["epsilon_tan"]["standing"] == "an estimate, not a guarantee"
    assert all(row["epsilon"] <= answer["epsilon"] for row in answer["tan"]["other_batches"])
    assert [curve["steps"] for curve in answer["tan"]["constant_eta"]] == [20, 320]
    assert "constant-eta" in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_a_plan_that_has_no_total_amount_of_noise_is_refused_and_leaves_no_file(lehr: Run, tmp_path: Path) -> None:
    arguments = ("--noise-multiplier", "2", "--adjacency", "replace-one", "--tan", "--save", "plan.json")
    assert "add-or-remove-one" in lehr(*SMALL, *arguments, code=2).stderr
    assert not (tmp_path / "plan.json").exists()


NOISE = ("account", "--noise-multiplier", "1.23", "--delta", "1e-5")
RUN = (*NOISE, "--expected-batch-size", "512", "--records", "60000", "--steps", "4698")


def test_every_accountant_answers_with_the_reference_values(lehr_json: RunJson) -> None:
    answers = {answer["accountant"]: answer for answer in lehr_json(*RUN)["answers"]}
    assert list(answers) == list(ACCOUNTANTS)
    assert answers["rdp-mironov17"]["epsilon"] == pytest.approx(2.9998, abs=5e-4)
    assert answers["rdp-balle20"]["epsilon"] == pytest.approx(2.584, abs=5e-3)
    assert answers["pld"]["epsilon"] == pytest.approx(2.366, abs=1e-3)
    assert [name for name, answer in answers.items() if answer["is_estimate"]] == ["gdp", "tan"]


def test_the_smallest_proven_bound_is_named(lehr: Run, lehr_json: RunJson) -> None:
    answer = lehr_json(*RUN)
    proven = [other["epsilon"] for other in answer["answers"] if not other["is_estimate"]]
    assert (answer["accountant"], answer["epsilon"]) == ("pld", min(proven))
    lines = lehr(*RUN).stdout.splitlines()
    assert [line.split()[0] for line in lines if "the smallest proven bound" in line] == ["pld"]
    assert [line.split()[0] for line in lines if "an estimate, not a guarantee" in line] == ["gdp", "tan"]


def test_a_probability_says_the_same_as_batch_size_and_records(lehr_json: RunJson) -> None:
    by_probability = lehr_json(*NOISE, "--sampling-probability", str(512 / 60_000), "--steps", "4698")
    assert by_probability == lehr_json(*RUN)


def test_a_plan_file_says_the_same_as_its_options(lehr_json: RunJson, plan_file: str) -> None:
    run = ("--expected-batch-size", "512", "--records", "60000", "--steps", "1000", "--delta", "1e-5")
    assert lehr_json("account", "--plan", plan_file) == lehr_json("account", "--noise-multiplier", "2", *run)


@pytest.mark.parametrize("surplus", [("--steps", "3"), ("--delta", "1e-6"), ("--adjacency", "replace-one")])
def test_nothing_is_said_beside_a_plan(lehr: Run, plan_file: str, surplus: tuple[str, ...]) -> None:
    assert "left out beside plan" in lehr("account", "--plan", plan_file, *surplus, code=2).stderr


def test_an_accountant_that_cannot_count_says_why(lehr: Run, lehr_json: RunJson) -> None:
    run = (*RUN, "--adjacency", "replace-one")
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


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "dear.toml").write_text(CONFIG)
    return "dear.toml"


def test_a_prediction_is_made_shown_and_compared_with_what_comes(
    lehr: Run, lehr_json: RunJson, config: str, tmp_path: Path
) -> None:
    first = lehr_json("simulate", config, "--batches", "4,8,16,32", "--seeds", "1", *CHEAP)
    prediction = strict_json.read(tmp_path / "dear-simulated" / "prediction.json", simulation.prediction_from_json)
    assert first["follows"] == prediction.to_json()["follows"]
    assert first["left_out"] == []

    said = lehr("simulate", config, "--batches", "8,16,32", "--seeds", "1", *CHEAP)
    assert "A run with batches of 64 is predicted to reach" in said.stdout
    assert "3 simulated runs that protect nobody" in said.stdout
    assert "not asked for: batch-4-seed-0." in said.stdout
    assert "run 3 of 3, batches of 32, seed 0" in said.stderr

    lehr("train", config, "--run", "dear", "--quiet", *CHEAP)
    told = lehr("report", "dear", "--prediction", "dear-simulated/prediction.json").stdout
    assert "was predicted (95 %: " in told
    assert "Predicted and reached" in (tmp_path / "dear" / "report.html").read_text()


@pytest.mark.parametrize(
    "options, match",
    [
        (("--batches", "8,many"), "separated by commas"),
        (("--batches", "8,16,128"), "less than the 64"),
        (("--batches", "8,16,32", "--confidence", "95"), "confidence"),
        (("--batches", "8,16,32", "--set", "data.declared=private"), "public or synthetic"),
        (("--batches", "8,16,32", "--set", "data.declared=pubic"), "declared must be one of"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    lehr: Run, config: str, tmp_path: Path, options: tuple[str, ...], match: str
) -> None:
    assert match in lehr("simulate", config, *options, code=2).stderr
    assert not (tmp_path / "dear-simulated").exists()
