"""``lehr certificate`` and ``lehr release``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.accounting.ledger import Ledger
from lehr.certificates.guarantee import claim_to_json
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


def test_issued_certificate_is_shown_and_holds(lehr: Run, lehr_json: RunJson, issued: Path) -> None:
    assert "The certificate holds: ε = " in lehr("certificate", "check", FILE).stdout
    checked = lehr_json("certificate", "check", FILE)
    assert (checked["holds"], checked["mismatches"]) == (True, [])
    page = lehr("certificate", "show", FILE).stdout
    assert page.startswith("PRIVACY CERTIFICATE\n")
    assert "Number of records, stated as public: 60,000." in page
    assert lehr_json("certificate", "show", FILE) == json.loads(issued.read_text(encoding="utf-8"))


def test_every_statement_reaches_the_certificate(lehr_json: RunJson, plan_file: str) -> None:
    shape = lehr_json(
        *_issue("--unit-of-privacy", "one image", "--records-per-person", "3"),
        *("--treated-as-public", "labels", "--treated-as-public", "records", "--released", "weights"),
        *("--raw-data-seen-by", "the hospital", "--data-collection", "with consent", "--steps-taken", "10"),
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


def test_private_settings_must_be_paid_for(lehr: Run, lehr_json: RunJson, plan_file: str) -> None:
    lehr(*_issue(chosen_on="private"), code=1)
    free = lehr_json(*_issue())["epsilon"]
    paid = _issue("--settings-cost", plan_file, "--overwrite", chosen_on="private")
    assert lehr_json(*paid)["epsilon"] > free


def _ledger(*, run: str = "first", steps: int = 1000) -> str:
    event, adjacency = Repeated(STEP, steps), Adjacency.ADD_OR_REMOVE_ONE
    with Ledger.create(f"{run}.ledger", run=run, plan_event=event, delta=1e-5, adjacency=adjacency) as ledger:
        ledger.record(Repeated(STEP, 250))
    return f"{run}.ledger"


@pytest.fixture
def budget(lehr: Run, plan_file: str) -> tuple[str, ...]:
    lehr("budget", "create", "mnist.budget", "--dataset", "MNIST", "--epsilon", "3", "--delta", "1e-5")
    lehr("budget", "reserve", "mnist.budget", "--run", "first", "--plan", plan_file)
    return ("--budget", "mnist.budget", "--run", "first")


def test_ledger_and_budget_are_read(lehr: Run, lehr_json: RunJson, budget: tuple[str, ...]) -> None:
    paid = (*budget, "--ledger", _ledger())
    assert "charged in full" in lehr(*_issue(*paid), code=1).stderr  # until the run is settled
    lehr("budget", "settle", "mnist.budget", "--run", "first", "--ledger", paid[-1])
    for steps in ("249", "251"):
        assert "the budget" in lehr(*_issue(*budget, "--steps-taken", steps), code=1).stderr
    assert not Path(FILE).exists()
    shape = lehr_json(*_issue(*paid))
    assert shape["ex_post"]["event"]["count"] == 250
    assert [payment["run"] for payment in shape["budget"]["paid_for"]] == ["first"]
    lehr("certificate", "check", FILE)


def test_run_chosen_by_a_private_search_has_the_limit_of_its_budget(
    lehr: Run, lehr_json: RunJson, budget: tuple[str, ...]
) -> None:
    lehr(*_issue(*budget, chosen_on="private"), code=1)
    lehr("budget", "reserve", "mnist.budget", "--run", "search", "--plan", "plan.json")
    assert lehr_json(*_issue(*budget, chosen_on="private"))["epsilon"] == 3


@pytest.mark.parametrize("ledger", [{"run": "other"}, {"steps": 999}], ids=["another run", "another plan"])
def test_foreign_ledger_is_refused(lehr: Run, plan_file: str, ledger: dict[str, object]) -> None:
    path = _ledger(**ledger)  # type: ignore[arg-type]
    refused = lehr(*_issue("--ledger", path, "--budget", "none", "--run", "first"), code=2)
    assert "ledger must be that of the" in refused.stderr


def test_forged_certificate_is_shown_with_a_warning(lehr: Run, lehr_json: RunJson, issued: Path) -> None:
    shape = json.loads(issued.read_text(encoding="utf-8"))
    shape["event"]["count"] += 1
    issued.write_text(json.dumps(shape))
    shown = lehr("certificate", "show", FILE, code=1)
    assert shown.stdout.startswith("THIS PRIVACY CERTIFICATE DOES NOT HOLD\n")
    assert "epsilon is stated as" in shown.stderr
    assert lehr_json("certificate", "show", FILE, code=1) == shape
    assert "epsilon is stated as" in lehr("certificate", "check", FILE, code=1).stderr
    assert lehr_json("certificate", "check", FILE, code=1)["holds"] is False


@pytest.mark.parametrize("path", [("proof",), ("premises", 0, "because"), ("theorem",)])
def test_text_of_a_certificate_cannot_move_the_cursor(lehr: Run, issued: Path, path: tuple[str | int, ...]) -> None:
    shape = json.loads(issued.read_text(encoding="utf-8"))
    part = shape
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = "\x1b[2Jall is well"
    issued.write_text(json.dumps(shape))
    shown = lehr("certificate", "show", FILE, code=3)
    assert "\x1b" not in shown.stdout + shown.stderr


def test_release_says_what_it_wrote_and_destroyed(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    config = configuration() | {"claims": {"published": claim_to_json(PUBLISHED)}}
    files = write_run(tmp_path / "first", config=config)
    shown = lehr("release", "first", "--to", "first-model").stdout
    for words in ("first-model: ε = 0.20393 at δ = 1e-05, proven", "README.md", "destroyed", "not a guarantee"):
        assert words in shown
    assert not files.key.exists()
    write_run(tmp_path / "run")
    assert lehr_json("release", "run", "--to", "model") == {
        "released": "model",
        "files": ["README.md", "certificate.json", "config.json", "model.safetensors"],
        "epsilon": certificate(steps_taken=40).epsilon,
        "delta": 1e-5,
        "published": None,
    }


def test_release_needs_a_statement_or_an_explicit_word(lehr: Run, tmp_path: Path) -> None:
    write_run(tmp_path / "run", config=configuration(stated=None)).certificate.unlink()
    assert "--settings-chosen-on" in lehr("release", "run", "--to", "model", code=2).stderr
    lehr("release", "run", "--to", "model", "--settings-chosen-on", "fixed")
    write_run(tmp_path / "open", config=configuration(plan=None))
    assert "--allow-no-privacy" in lehr("release", "open", "--to", "other", code=2).stderr
    assert "no privacy guarantee" in lehr("release", "open", "--to", "other", "--allow-no-privacy").stdout
