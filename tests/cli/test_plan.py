from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from lehr.files import json_file
from lehr.planning.plan import Plan

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]
MNIST = ("plan", "--delta", "1e-5", "--records", "60000", "--expected-batch-size", "512")


def test_three_are_given_and_the_fourth_is_found(lehr_json: RunJson) -> None:
    answer = lehr_json(*MNIST, "--noise-multiplier", "1.23", "--epsilon", "3")
    assert answer["plan"]["steps"] == pytest.approx(7245, abs=10)
    assert 2.99 < answer["epsilon"] <= 3
    assert answer["accountant"] == "pld"
    assert answer["claim"]["kind"] == "proven"


def test_noise_is_found_that_keeps_within_epsilon(lehr_json: RunJson) -> None:
    answer = lehr_json(*MNIST, "--steps", "4698", "--epsilon", "3")
    assert 3 * 0.999 <= answer["epsilon"] <= 3


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
    for other in passed_over:
        assert f"not {other['accountant']}" in shown


def test_the_chart_can_be_left_out(lehr: Run) -> None:
    assert "against steps" not in lehr(*MNIST, "--noise-multiplier", "1.23", "--steps", "10", "--no-chart").stdout


def test_page_and_plan_are_written(lehr_json: RunJson, tmp_path: Path) -> None:
    files = ("--html", "plan.html", "--save", "plan.json")
    answer = lehr_json(*MNIST, "--noise-multiplier", "1.23", "--steps", "100", *files)
    assert json_file.read(tmp_path / "plan.json", Plan.from_json).to_json() == answer["plan"]
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
    assert json_file.read(tmp_path / "notes.txt", Plan.from_json).steps == 10


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
    assert "ε against noise" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown


def test_its_chart_can_be_left_out_too(lehr: Run) -> None:
    shown = lehr(*SMALL, "--noise-multiplier", "3", "--tan", "--no-chart").stdout
    assert "ε against" not in shown
    assert "Other batches" in shown


def test_the_total_amount_of_noise_is_in_the_json_and_on_the_page(lehr_json: RunJson, tmp_path: Path) -> None:
    answer = lehr_json(*SMALL, "--noise-multiplier", "1.1", "--tan", "--html", "plan.html")
    standing = answer["tan"]["standing"]
    assert standing["epsilon"] == answer["epsilon"]
    assert standing["epsilon_tan"]["standing"] == "an estimate, not a guarantee"
    assert all(row["epsilon"] <= answer["epsilon"] for row in answer["tan"]["other_batches"])
    assert [curve["steps"] for curve in answer["tan"]["constant_eta"]] == [20, 320]
    assert "constant-eta" in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_without_asking_nothing_is_said_of_it(lehr_json: RunJson) -> None:
    assert "tan" not in lehr_json(*SMALL, "--noise-multiplier", "1.1")


def test_a_plan_that_has_no_total_amount_of_noise_is_refused_and_leaves_no_file(lehr: Run, tmp_path: Path) -> None:
    arguments = ("--noise-multiplier", "2", "--adjacency", "replace-one", "--tan", "--save", "plan.json")
    assert "add-or-remove-one" in lehr(*SMALL, *arguments, code=2).stderr
    assert not (tmp_path / "plan.json").exists()
