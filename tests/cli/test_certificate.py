"""``lehr certificate`` and ``lehr release``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.accounting.ledger import Ledger
from lehr.certificates.guarantee import claim_to_json
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from tests.certificates.conftest import PUBLISHED
from tests.cli.conftest import Run, RunJson
from tests.written_runs import certificate, configuration, write_run

FILE = "certificate.json"
STEP = PoissonSampled(512 / 60_000, Gaussian(2.0))


@pytest.fixture
def issued(lehr: Run, plan_file: str) -> Path:
    lehr(*_issue())
    return Path(FILE)


def _issue(*more: str, chosen_on: str = "public") -> tuple[str, ...]:
    return ("certificate", "issue", FILE, "--plan", "plan.json", "--settings-chosen-on", chosen_on, *more)


def test_what_is_issued_holds(lehr: Run, lehr_json: RunJson, issued: Path) -> None:
    assert "The certificate holds: ε = " in lehr("certificate", "check", FILE).stdout
    checked = lehr_json("certificate", "check", FILE)
    assert (checked["holds"], checked["mismatches"]) == (True, [])


def test_a_certificate_is_shown_as_a_page_or_as_it_is(lehr: Run, lehr_json: RunJson, issued: Path) -> None:
    page = lehr("certificate", "show", FILE).stdout
    assert page.startswith("PRIVACY CERTIFICATE\n")
    assert "Number of records, stated as public: 60,000." in page
    assert lehr_json("certificate", "show", FILE) == json.loads(issued.read_text(encoding="utf-8"))


def test_every_statement_reaches_the_certificate(lehr_json: RunJson, plan_file: str) -> None:
    shape = lehr_json(
        *_issue("--unit-of-privacy", "one image", "--records-per-person", "3"),
        *("--treated-as-public", "labels", "--treated-as-public", "records", "--released", "weights"),
        *("--raw-data-seen-by", "the hospital", "--data-collection", "with consent", "--steps-taken", "10"),
        *("--audit-method", "canaries", "--audit-epsilon", "0.01", "--audit-confidence", "0.95"),
    )
    assert shape["stated"] == {
        "settings_chosen_on": "public",
        "unit_of_privacy": "one image",
        "records_per_person": 3,
        "records": 60_000,
        "treated_as_public": ["labels", "records"],
        "released": ["weights"],
        "raw_data_seen_by": "the hospital",
        "data_collection": "with consent",
    }
    assert shape["ex_post"]["event"]["count"] == 10
    assert shape["audit"] == {"method": "canaries", "epsilon_lower_bound": 0.01, "confidence": 0.95}


def test_private_settings_must_be_paid_for(lehr: Run, lehr_json: RunJson, plan_file: str) -> None:
    lehr(*_issue(chosen_on="private"), code=1)
    free = lehr_json(*_issue())["epsilon"]
    paid = _issue("--settings-cost", plan_file, "--overwrite", chosen_on="private")
    assert lehr_json(*paid)["epsilon"] > free


def test_a_search_by_another_adjacency_cannot_be_added(lehr: Run, plan_file: str, tmp_path: Path) -> None:
    search = Plan(
        noise_multiplier=2.0,
        steps=10,
        expected_batch_size=512,
        records=60_000,
        delta=1e-5,
        adjacency=Adjacency.REPLACE_ONE,
    )
    strict_json.write(tmp_path / "search.json", search.to_json())
    refused = lehr(*_issue("--settings-cost", "search.json", chosen_on="private"), code=2)
    assert "in every file of one run" in refused.stderr


def _ledger(*, run: str = "first", steps: int = 1000, taken: int = 250) -> str:
    with Ledger.create(
        f"{run}.ledger",
        run=run,
        plan_event=Repeated(STEP, steps),
        delta=1e-5,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
    ) as ledger:
        ledger.record(Repeated(STEP, taken))
    return f"{run}.ledger"


@pytest.fixture
def budget(lehr: Run, plan_file: str) -> tuple[str, ...]:
    lehr("budget", "create", "mnist.budget", "--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5")
    lehr("budget", "reserve", "mnist.budget", "--run", "first", "--plan", plan_file)
    return ("--budget", "mnist.budget", "--run", "first")


def test_ledger_and_budget_are_read(lehr: Run, lehr_json: RunJson, budget: tuple[str, ...]) -> None:
    ledger = _ledger()
    paid = (*budget, "--ledger", ledger)
    assert "run must be given" in lehr(*_issue(*budget[:2]), code=2).stderr
    assert "until a run is settled it is charged in full" in lehr(*_issue(*paid), code=1).stderr
    lehr("budget", "settle", "mnist.budget", "--run", "first", "--ledger", ledger)
    shape = lehr_json(*_issue(*paid))
    assert shape["ex_post"]["event"]["count"] == 250
    assert [payment["run"] for payment in shape["budget"]["paid_for"]] == ["first"]
    lehr("certificate", "check", FILE)


def test_the_budget_says_what_was_done_and_nothing_else_is_believed(
    lehr: Run, lehr_json: RunJson, budget: tuple[str, ...]
) -> None:
    lehr("budget", "settle", "mnist.budget", "--run", "first", "--steps", "40")
    for steps in ("39", "41"):
        assert "the budget" in lehr(*_issue(*budget, "--steps-taken", steps), code=1).stderr
    assert not Path(FILE).exists()
    assert lehr_json(*_issue(*budget))["ex_post"]["event"]["count"] == 40


def test_a_run_chosen_after_a_private_search_has_the_limit_of_its_budget(
    lehr: Run, lehr_json: RunJson, budget: tuple[str, ...]
) -> None:
    assert "neither an event nor a budget" in lehr(*_issue(*budget, chosen_on="private"), code=1).stderr
    lehr("budget", "reserve", "mnist.budget", "--run", "search", "--plan", "plan.json")
    assert lehr_json(*_issue(*budget, chosen_on="private"))["epsilon"] == 3
    shown = " ".join(lehr("certificate", "show", FILE).stdout.split())
    assert "This is the limit of the budget below" in shown


def test_the_ledger_of_another_run_or_plan_is_refused(lehr: Run, plan_file: str) -> None:
    other_run = lehr(*_issue("--ledger", _ledger(run="other"), "--budget", "none", "--run", "first"), code=2)
    assert "ledger must be that of the run 'first'" in other_run.stderr
    other_plan = lehr(*_issue("--ledger", _ledger(steps=999)), code=2)
    assert "ledger must be that of the plan" in other_plan.stderr


def test_a_forged_certificate_is_shown_with_a_warning(lehr: Run, lehr_json: RunJson, issued: Path) -> None:
    shape = json.loads(issued.read_text(encoding="utf-8"))
    shape["event"]["count"] += 1
    issued.write_text(json.dumps(shape))
    shown = lehr("certificate", "show", FILE, code=1)
    assert shown.stdout.startswith("THIS PRIVACY CERTIFICATE DOES NOT HOLD\n  - epsilon is stated as")
    assert "epsilon is stated as" in shown.stderr
    assert lehr_json("certificate", "show", FILE, code=1) == shape
    assert "epsilon is stated as" in lehr("certificate", "check", FILE, code=1).stderr
    assert lehr_json("certificate", "check", FILE, code=1)["holds"] is False


@pytest.mark.parametrize("path", [("proof",), ("premises", 0, "because"), ("theorem",)])
def test_nothing_in_a_certificate_reaches_the_terminal_as_an_order(
    lehr: Run, issued: Path, path: tuple[str | int, ...]
) -> None:
    shape = json.loads(issued.read_text(encoding="utf-8"))
    part = shape
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = "\x1b[2Jall is well"
    issued.write_text(json.dumps(shape))
    shown = lehr("certificate", "show", FILE, code=3)
    assert "\x1b" not in shown.stdout + shown.stderr


def test_another_file_is_replaced_only_when_asked_and_a_budget_never(lehr: Run, issued: Path) -> None:
    before = issued.read_text(encoding="utf-8")
    assert "only with --overwrite" in lehr(*_issue("--steps-taken", "3"), code=3).stderr
    assert issued.read_text(encoding="utf-8") == before
    lehr(*_issue("--steps-taken", "3", "--overwrite"))
    lehr("budget", "create", "clinic.budget", "--dataset", "clinic", "--epsilon", "3", "--delta", "1e-5")
    to_budget = ("certificate", "issue", "clinic.budget", *_issue()[3:], "--overwrite")
    assert "it stays" in lehr(*to_budget, code=3).stderr
    lehr("budget", "show", "clinic.budget")


@pytest.mark.parametrize(
    "more, code",
    [
        (("--audit-method", "canaries"), 2),
        (("--steps-taken", "0"), 2),
        (("--steps-taken", "1001"), 1),
        (("--run", "first"), 2),
        (("--unit-of-privacy", "two\nlines"), 2),
        (("--ledger", "none.ledger"), 3),
        (("--budget", "none.budget", "--run", "first"), 3),
        (("--ledger", "none.ledger", "--steps-taken", "3"), 2),
    ],
)
def test_what_cannot_be_issued_has_its_exit_code(
    lehr_json: RunJson, plan_file: str, more: tuple[str, ...], code: int
) -> None:
    assert lehr_json(*_issue(*more), code=code)["error"]["exit_code"] == code
    assert not Path(FILE).exists()


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize("content", ["not JSON", '{"format": "lehr-certificate", "format_version": 99}'])
def test_a_file_that_is_no_certificate_is_named(lehr: Run, tmp_path: Path, command: str, content: str) -> None:
    (tmp_path / "broken.json").write_text(content)
    assert "broken.json" in lehr("certificate", command, "broken.json", code=3).stderr


def test_a_simulation_is_not_certified_and_pays_for_no_settings(lehr: Run, plan_file: str) -> None:
    plan = strict_json.read(Path(plan_file), Plan.from_json)
    strict_json.write(Path("small.json"), simulate(plan, expected_batch_size=64).to_json())
    simulated = ("certificate", "issue", FILE, "--plan", "small.json", "--settings-chosen-on", "public")
    assert "no simulation" in lehr(*simulated, code=2).stderr
    assert "no simulation" in lehr(*_issue("--settings-cost", "small.json", chosen_on="private"), code=2).stderr
    assert not Path(FILE).exists()


def test_a_release_says_what_it_wrote_and_what_it_destroyed(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    files = write_run(tmp_path / "first")
    said = lehr("release", "first", "--to", "first-model").stdout
    for words in ("first-model: ε = 0.20393 at δ = 1e-05, proven", "model_card.md", "destroyed"):
        assert words in said
    assert not files.key.exists()
    write_run(tmp_path / "run")
    assert lehr_json("release", "run", "--to", "model") == {
        "released": "model",
        "files": ["certificate.json", "config.json", "model.safetensors", "model_card.md"],
        "epsilon": certificate(steps_taken=40).epsilon,
        "delta": 1e-5,
        "published": None,
    }


def test_the_number_of_a_papers_rule_is_shown_as_what_it_is(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration() | {"claims": {"published": claim_to_json(PUBLISHED)}})
    said = lehr("release", "run", "--to", "model").stdout
    assert "ε as published: 1 — not a guarantee: the choice looks at the records" in said


def test_a_run_that_is_not_over_is_an_unusable_file(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_over=False)
    assert "not over" in lehr("release", "run", "--to", "model", code=3).stderr


def test_what_was_never_stated_can_be_stated_now(lehr: Run, tmp_path: Path) -> None:
    files = write_run(tmp_path / "run", config=configuration(stated=None))
    files.certificate.unlink()
    assert "--settings-chosen-on" in lehr("release", "run", "--to", "model", code=2).stderr
    lehr("release", "run", "--to", "model", "--settings-chosen-on", "fixed")


def test_a_model_without_privacy_needs_a_word(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(plan=None))
    assert "--allow-no-privacy" in lehr("release", "run", "--to", "model", code=2).stderr
    assert "no privacy guarantee" in lehr("release", "run", "--to", "model", "--allow-no-privacy").stdout
