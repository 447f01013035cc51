from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated
from lehr.accounting.ledger import Ledger
from lehr.planning.budget import Budget
from tests.cli.conftest import Run, RunJson

FILE = "mnist.budget"
STEP = PoissonSampled(512 / 60_000, Gaussian(2.0))


@pytest.fixture
def budget(lehr: Run, plan_file: str) -> str:
    lehr("budget", "create", FILE, "--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5")
    return plan_file


def _reserve(run: str = "first", plan: str = "plan.json") -> tuple[str, ...]:
    return ("budget", "reserve", FILE, "--run", run, "--plan", plan)


def test_a_run_reserves_spends_and_gives_back(lehr: Run, lehr_json: RunJson, budget: str) -> None:
    status = lehr_json("budget", "show", FILE)
    assert (status["dataset"], status["epsilon"], status["delta"]) == ("MNIST", 3, 1e-5)
    assert (status["epsilon_spent"], status["runs"], status["mode"]) == (0, [], "filter")
    reserved = lehr_json(*_reserve())["epsilon_spent"]
    assert reserved > 0
    assert lehr_json("budget", "spend", FILE, "--run", "first", "--steps", "100")["epsilon_spent"] == reserved
    lehr("budget", "spend", FILE, "--run", "first", "--steps", "901", code=1)
    settled = lehr_json("budget", "settle", FILE, "--run", "first")
    assert settled["given_back"]["count"] == 900
    assert settled["runs"][0]["charged"]["count"] == 100
    assert settled["epsilon_spent"] < reserved
    lehr(*_reserve("second"))
    shown = lehr("budget", "settle", FILE, "--run", "second", "--steps", "100").stdout
    for words in ("Given back: 900 ×", "MNIST", "ε = 3 at δ = 1e-05", "first", "settled", "filter"):
        assert words in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_a_run_of_several_events_is_shown_by_them(lehr: Run, budget: str) -> None:
    with Budget.open(FILE) as opened:
        opened.reserve(Composed((STEP, Gaussian(50.0))), run="mixed")
    shown = lehr("budget", "show", FILE).stdout
    assert "Gaussian(noise_multiplier=50)" in "".join(shown.split())
    assert (
        "given only for a run that repeats one event"
        in lehr("budget", "spend", FILE, "--run", "mixed", "--steps", "1", code=2).stderr
    )


def test_what_does_not_fit_is_refused_and_leaves_no_trace(lehr: Run, lehr_json: RunJson, budget: str) -> None:
    lehr(
        *("plan", "--noise-multiplier", "0.6", "--steps", "5000", "--expected-batch-size", "512", "--no-chart"),
        *("--records", "60000", "--delta", "1e-5", "--save", "large.json"),
    )
    before = lehr_json("budget", "show", FILE)
    assert lehr_json(*_reserve(plan="large.json"), code=1)["error"]["kind"] == "BudgetExceeded"
    assert lehr_json("budget", "show", FILE) == before


def test_a_whole_budget_goes_to_one_plan_alone(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    assert lehr_json(*_reserve(), "--whole-budget")["mode"] == "single plan"
    lehr(*_reserve("second"), code=1)


def test_a_run_settles_by_what_it_says_or_what_its_ledger_says(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    lehr(*_reserve("told"))
    lehr(*_reserve("booked"))
    with Ledger.create(
        "run.ledger",
        run="booked",
        plan_event=Repeated(STEP, 1000),
        delta=1e-5,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
    ) as ledger:
        ledger.record(Repeated(STEP, 40))
    assert lehr_json("budget", "settle", FILE, "--run", "told", "--steps", "30")["given_back"]["count"] == 970
    assert (
        lehr_json("budget", "settle", FILE, "--run", "booked", "--ledger", "run.ledger")["given_back"]["count"] == 960
    )


def test_a_run_that_did_nothing_gives_everything_back(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    lehr(*_reserve())
    assert lehr_json("budget", "settle", FILE, "--run", "first", "--steps", "0")["epsilon_spent"] == 0


def test_fits_says_how_many_and_whether(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    step = ("--noise-multiplier", "2", "--expected-batch-size", "512", "--records", "60000")
    largest = lehr_json("budget", "fits", FILE, *step)["largest_steps"]
    with Budget.open(FILE) as opened:
        assert largest == opened.largest_steps(STEP)
    assert lehr_json("budget", "fits", FILE, *step, "--steps", str(largest))["fits"] is True
    assert lehr_json("budget", "fits", FILE, *step, "--steps", str(largest + 1), code=1)["fits"] is False
    assert lehr_json("budget", "fits", FILE, "--plan", budget)["steps"] == 1000
    assert f"{largest:,} ×" in lehr("budget", "fits", FILE, *step).stdout
    assert lehr_json("budget", "show", FILE)["epsilon_spent"] == 0


def test_a_budget_can_be_tuned_to_a_plan(lehr_json: RunJson, lehr: Run, budget: str) -> None:
    limit = ("--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5")
    tuned = lehr_json("budget", "create", "tuned.budget", *limit, "--expecting", budget)
    assert tuned["orders"] != lehr_json("budget", "show", FILE)["orders"]


def test_a_plan_of_another_adjacency_is_refused(lehr: Run, budget: str) -> None:
    lehr(
        *("plan", "--noise-multiplier", "4", "--steps", "10", "--expected-batch-size", "512", "--no-chart"),
        *("--records", "60000", "--delta", "1e-5", "--save", "other.json", "--adjacency", "replace-one"),
    )
    assert "add-or-remove-one in every file of one run" in lehr(*_reserve(plan="other.json"), code=2).stderr


@pytest.mark.parametrize(
    "arguments, code",
    [
        (("create", FILE, "--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5"), 3),
        (("create", "new.budget", "--dataset", "", "--epsilon", "3", "--delta", "1e-5"), 2),
        (("create", "new.budget", "--dataset", "MNIST", "--epsilon", "-3", "--delta", "1e-5"), 2),
        (("show", "none.budget"), 3),
        (("show", "plan.json"), 3),
        (("spend", FILE, "--run", "unknown", "--steps", "1"), 2),
        (("fits", FILE, "--noise-multiplier", "2", "--sampling-probability", "0.01", "--steps", "0"), 2),
        (("settle", FILE, "--run", "unknown"), 2),
    ],
)
def test_what_cannot_be_done_has_its_exit_code(
    lehr_json: RunJson, budget: str, arguments: tuple[str, ...], code: int
) -> None:
    assert lehr_json("budget", *arguments, code=code)["error"]["exit_code"] == code


def test_a_name_is_no_order_to_the_terminal(lehr: Run) -> None:
    create = ("budget", "create", FILE, "--epsilon", "1", "--delta", "1e-5", "--dataset")
    assert "\x1b" not in lehr(*create, "\x1b[2J", code=2).stderr
    assert "[red] :smile:" in lehr(*create, "[red] :smile:").stdout


def test_an_old_copy_is_refused_by_the_head_that_was_noted(lehr: Run, lehr_json: RunJson, budget: str) -> None:
    old = Path(FILE).read_bytes()
    head = lehr_json(*_reserve())["head"]
    assert head == lehr_json("budget", "show", FILE, "--continuing", head)["head"]
    assert head in "".join(lehr("budget", "show", FILE).stdout.split())
    Path(FILE).write_bytes(old)
    step = ("--noise-multiplier", "2", "--sampling-probability", "0.01")
    for command in (
        ("show", FILE),
        ("fits", FILE, *step),
        _reserve("second")[1:],
        ("spend", FILE, "--run", "first", "--steps", "1"),
        ("settle", FILE, "--run", "first", "--steps", "1"),
    ):
        lehr("budget", *command, "--continuing", head, code=3)


def test_the_ledger_of_another_run_settles_nothing(lehr: Run, budget: str) -> None:
    lehr(*_reserve())
    whole = Repeated(STEP, 1000)
    for run, event in (("other", whole), ("first", Repeated(STEP, 999))):
        with Ledger.create(
            f"{run}.ledger", run=run, plan_event=event, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE
        ):
            pass
        settle = ("budget", "settle", FILE, "--run", "first", "--ledger", f"{run}.ledger")
        assert "ledger must be that of the" in lehr(*settle, code=2).stderr


def test_a_run_that_recorded_nothing_is_told_how_to_settle(lehr: Run, budget: str) -> None:
    lehr(*_reserve())
    complaint = lehr("budget", "settle", FILE, "--run", "first", code=2).stderr
    assert "--steps" in complaint
    assert "--ledger" in complaint


def test_a_plan_says_all_that_fits_needs(lehr: Run, budget: str) -> None:
    for option in ("--noise-multiplier", "--records", "--expected-batch-size", "--sampling-probability", "--steps"):
        refused = lehr("budget", "fits", FILE, "--plan", budget, option, "1", code=2)
        assert "must be left out beside plan" in refused.stderr
