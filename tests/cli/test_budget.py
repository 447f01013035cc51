from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated
from lehr.accounting.ledger import Ledger
from lehr.planning.budget import Budget
from tests.cli.conftest import Run, RunJson, write_plan

FILE = "mnist.budget"
LIMIT = ("--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5")
STEP = PoissonSampled(512 / 60_000, Gaussian(2.0))


@pytest.fixture
def budget(lehr: Run, plan_file: str) -> str:
    lehr("budget", "create", FILE, *LIMIT)
    return plan_file


def _reserve(run: str = "first", plan: str = "plan.json") -> tuple[str, ...]:
    return ("budget", "reserve", FILE, "--run", run, "--plan", plan)


def test_run_reserves_spends_and_gives_back(lehr: Run, lehr_json: RunJson, budget: str) -> None:
    status = lehr_json("budget", "show", FILE)
    assert (status["dataset"], status["epsilon"], status["delta"]) == ("MNIST", 3, 1e-5)
    assert (status["epsilon_spent"], status["runs"], status["mode"]) == (0, [], "filter")
    reserved = lehr_json(*_reserve())["epsilon_spent"]
    assert reserved > 0
    assert lehr_json("budget", "spend", FILE, "--run", "first", "--steps", "100")["epsilon_spent"] == reserved
    lehr("budget", "spend", FILE, "--run", "first", "--steps", "901", code=1)
    settled = lehr_json("budget", "settle", FILE, "--run", "first")
    assert (settled["given_back"]["count"], settled["runs"][0]["charged"]["count"]) == (900, 100)
    assert settled["epsilon_spent"] < reserved
    lehr(*_reserve("second"))
    shown = lehr("budget", "settle", FILE, "--run", "second", "--steps", "100").stdout
    for words in ("Given back: 900 ×", "MNIST", "ε = 3 at δ = 1e-05", "first", "settled", "filter"):
        assert words in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_run_settles_by_its_steps_or_its_ledger(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    for run, steps, taken in (("none", 0, 1000), ("some", 30, 970)):
        lehr(*_reserve(run))
        settled = lehr_json("budget", "settle", FILE, "--run", run, "--steps", str(steps))
        assert settled["given_back"]["count"] == taken
    lehr(*_reserve("booked"))
    for name, run, steps in (("own", "booked", 1000), ("run", "other", 1000), ("plan", "booked", 999)):
        event, adjacency = Repeated(STEP, steps), Adjacency.ADD_OR_REMOVE_ONE
        with Ledger.create(name, run=run, plan_event=event, delta=1e-5, adjacency=adjacency) as ledger:
            ledger.record(Repeated(STEP, 40))
    settle = ("budget", "settle", FILE, "--run", "booked", "--ledger")
    for other in ("run", "plan"):
        assert "ledger must be that of the" in lehr(*settle, other, code=2).stderr
    assert lehr_json(*settle, "own")["given_back"]["count"] == 960


def test_run_of_several_events_is_shown_by_them(lehr: Run, budget: str) -> None:
    with Budget.open(FILE) as opened:
        opened.reserve(Composed((STEP, Gaussian(50.0))), run="mixed")
    assert "Gaussian(noise_multiplier=50)" in "".join(lehr("budget", "show", FILE).stdout.split())
    assert "steps must be" in lehr("budget", "spend", FILE, "--run", "mixed", "--steps", "1", code=2).stderr


def test_fits_counts_and_reserves_nothing(lehr_json: RunJson, lehr: Run, budget: str, tmp_path: Path) -> None:
    answer = lehr_json("budget", "fits", FILE, "--plan", budget)
    with Budget.open(FILE) as opened:
        assert answer["largest_steps"] == opened.largest_steps(STEP)
    assert (answer["steps"], answer["fits"]) == (1000, True)
    assert f"{answer['largest_steps']:,} ×" in lehr("budget", "fits", FILE, "--plan", budget).stdout
    large = write_plan(tmp_path / "large.json", steps=answer["largest_steps"] + 1)
    assert lehr_json("budget", "fits", FILE, "--plan", large, code=1)["fits"] is False
    assert lehr_json("budget", "show", FILE)["epsilon_spent"] == 0


def test_budget_can_be_given_or_tuned_to_one_plan(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    tuned = lehr_json("budget", "create", "tuned.budget", *LIMIT, "--expecting", budget)
    assert tuned["orders"] != lehr_json("budget", "show", FILE)["orders"]
    assert lehr_json(*_reserve(), "--whole-budget")["mode"] == "single plan"
    lehr(*_reserve("second"), code=1)


def test_name_is_printed_as_text(lehr: Run) -> None:
    create = ("budget", "create", FILE, "--epsilon", "1", "--delta", "1e-5", "--dataset")
    assert "\x1b" not in lehr(*create, "\x1b[2J", code=2).stderr
    assert "[red] :smile:" in lehr(*create, "[red] :smile:").stdout


def test_old_copy_is_refused_by_its_head(lehr: Run, lehr_json: RunJson, budget: str) -> None:
    old = Path(FILE).read_bytes()
    head = lehr_json(*_reserve())["head"]
    assert head == lehr_json("budget", "show", FILE, "--continuing", head)["head"]
    assert head in "".join(lehr("budget", "show", FILE).stdout.split())
    Path(FILE).write_bytes(old)
    for command in (
        ("show", FILE),
        ("fits", FILE, "--plan", budget),
        _reserve("second")[1:],
        ("spend", FILE, "--run", "first", "--steps", "1"),
        ("settle", FILE, "--run", "first", "--steps", "1"),
    ):
        lehr("budget", *command, "--continuing", head, code=3)
